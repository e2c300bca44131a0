"""Calculations are answered after MPO on stored answers, after GSPO, and after both."""

from __future__ import annotations

import pytest

from mmrl.build.datasets import load_samples
from mmrl.data.jsonl import write_samples
from mmrl_shapeworld.reasoning.cascaded_runs import MEDIUM, MOSTLY_HARD, cascaded_answers, stored_answers


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> str:
    """Write 24 prompts of training, of which the base does most now and then, and 4 that it never does."""
    path = tmp_path_factory.mktemp("cascaded") / "learnt.jsonl"
    too_hard = [sample for place, sample in enumerate(load_samples(MOSTLY_HARD)) if place % 5]
    write_samples([*load_samples("shapeworld:remainders-few")[:24], *too_hard[:4]], path)
    return str(path)


@pytest.mark.integration
def test_stored_answers_make_pairs_and_tell_what_is_too_hard(learnt):
    pairs, medium = stored_answers(3, learnt, 28 * 8)
    assert stored_answers(3, learnt, 28 * 8)[0] is pairs  # the arms of a study share them
    known = {sample.id: sample for sample in load_samples(learnt)}
    assert {sample.id for sample in medium} <= set(list(known)[:24]) and len(medium) >= 16
    for pair in pairs:
        answers = [text.rpartition("</think>")[2] for text in (pair.chosen, pair.rejected)]
        assert answers[0] == str(known[pair.id.rpartition("-pair-")[0]].answer) != answers[1]
    assert MEDIUM == (0.2, 0.8)


@pytest.mark.slow
def test_both_stages_change_what_is_answered_and_equal_seeds_answer_equally(learnt):
    short = {"learnt": learnt, "updates": 2, "evaluated": 24}
    arms = {
        "base": (0, 0),
        "offline": (28 * 8, 0),
        "online": (0, 128),
        "cascade": (28 * 8, 128),
    }
    found = {name: cascaded_answers(3, *answers, **short) for name, answers in arms.items()}
    assert all(len(each["right"]) == 24 and set(each["right"]) <= {0.0, 1.0} for each in found.values())
    assert len({tuple(each["tokens"]) for each in found.values()}) == 4
    without = cascaded_answers(3, 28 * 8, 0, **(short | {"updates": 0}))
    assert without == found["base"]  # stored answers alone teach nothing
    assert cascaded_answers(3, 28 * 8, 0, **short) == found["offline"]
