"""Critiques of answers with injected errors: what is wrong, what a critique earns, and what a reasoner makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import InvalidAnswer, Status
from mmrl.rewards.core.reward_io import RewardContext, reward_input
from mmrl_shapeworld.reasoning.calculations import Calculation, step
from mmrl_shapeworld.reasoning.criticised_chains import (
    FirstAnswer,
    InjectedErrors,
    NothingNamed,
    SecondAnswer,
    criticised,
    critique,
    injected,
    named_steps,
)
from mmrl_shapeworld.splits import samples


def items(sample: Sample, *texts: str):
    return [reward_input(sample, text, 0, f"{sample.id}/{row}") for row, text in enumerate(texts)]


def test_wrong_steps_do_not_follow_and_all_others_do():
    for count in range(3):
        found = injected(Calculation(10, 3, "+*-", (5, 7, 2)), count, np.random.default_rng(count))
        value = 3
        for place, text in enumerate(found.steps):
            taken, result = text[:-1].split("=")
            assert taken.startswith(str(value))
            right = step(int(taken[0]), taken[1], int(taken[2]), 10)
            assert (int(result) != right) == (place in found.wrong)
            value = int(result)
        assert len(found.wrong) == count and found.answer.endswith(f"</think>{value}")
        assert found.prompt == f"3+5*7-2={found.answer}?"


@pytest.mark.integration
def test_parts_share_no_calculation():
    parts = [{str(each.calculation) for each in criticised(part)} for part in ("train", "development", "validation")]
    assert sum(map(len, parts)) == len(set.union(*parts))
    counts = Counter(len(each.wrong) for each in criticised("train"))
    assert counts[1] > counts[0] > 500 and counts[2] > 500


def test_a_careless_critic_is_often_wrong_and_a_reasoner_believes_it():
    rows = samples("criticised-train")
    reward = InjectedErrors()
    earned = [float(reward.score(items(row, row.demonstration)).values["injected_errors"][0]) for row in rows[:300]]
    assert 0.3 < np.mean(earned) < 0.7
    assert all(reward.score(items(row, row.answer)).values["injected_errors"] == [1.0] for row in rows[:50])
    for row in samples("second-answers")[:200]:
        named = row.prompt.rpartition("?")[2]
        value = int(row.demonstration.rpartition(">")[2])
        assert value == (row.metadata["first"] if named == "ok!" else row.metadata["value"])
        assert row.prompt.endswith("!")


def test_a_critique_gives_each_step_the_result_that_it_finds():
    rng = np.random.default_rng(0)
    found = injected(Calculation(10, 3, "+*-", (5, 7, 2)), 1, rng)
    (wrong,) = found.wrong
    right = critique(found, [wrong])
    for text, written in zip(right.split(";"), "".join(found.steps).split(";"), strict=True):
        taken, _, result = text.partition("=")
        assert taken == written.partition("=")[0]
        assert not taken or int(result) == step(int(taken[0]), taken[1], int(taken[2]), 10)
    assert named_steps(right, found.steps) == (found.steps[wrong],)
    assert named_steps(critique(found, []), found.steps) == ()
    for place in range(3):
        assert named_steps(critique(found, [place], rng), found.steps) == (found.steps[place],)


STEPS = ("3+5=8;", "8*7=5;", "5-2=1;")


def test_a_critique_earns_the_jaccard_index_of_what_it_names():
    sample = Sample("s", prompt="?", metadata={"steps": STEPS, "wrong": ["8*7=5;", "5-2=1;"]})
    results = ("863", "861", "961", "851", "151")
    texts = tuple("3+5={};8*7={};5-2={};".format(*each) for each in results)
    found = InjectedErrors().score(items(sample, *texts)).values["injected_errors"]
    np.testing.assert_allclose(found, [1, 1 / 2, 1 / 3, 0, 0], rtol=1e-6)
    fine = Sample("s", prompt="?", metadata={"steps": STEPS[:1], "wrong": []})
    assert InjectedErrors().score(items(fine, "3+5=8;", "3+5=7;")).values["injected_errors"].tolist() == [1.0, 0.0]
    assert NothingNamed().score(items(fine, "3+5=7;")).values["injected_errors"].tolist() == [1.0]
    bad = ("", "8*7", "3+5=8;8*7=6;", "3+5=8;8*7=6;6-2=4;", "3+5=8;8*7=6;5-2=3;.", "3+5=8;3+5=8;8*7=6;5-2=3;")
    scored = InjectedErrors().score(items(sample, *bad))
    assert scored.status["injected_errors"] == [Status.INVALID] * 6
    with pytest.raises(InvalidAnswer, match="with a result for each"):
        named_steps("wrong", STEPS)


class Believer:
    """A reasoner who is right where a step is named, and repeats the first answer after `ok`."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def answers(self, requests: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        self.prompts += [each.prompt for each in requests]
        assert len({each.id for each in requests}) == len(requests)
        return [
            [f"<think></think>{each.metadata['first' if each.prompt.endswith('ok!') else 'value']}"]
            for each in requests
        ]


def test_the_second_answer_follows_the_critique():
    metadata = {"steps": ["3+5=9;"], "wrong": ["3+5=9;"], "value": 8, "first": 9}
    sample = Sample("s", prompt="3+5=<think>3+5=9;</think>9?", metadata=metadata)
    reasoner = Believer()
    context = RewardContext(models={"reasoner": reasoner})
    rows = items(sample, "3+5=8;", "3+5=9;", "nonsense", " 3+5=7; ")
    found = SecondAnswer().score(rows, context)
    assert found.values["second_answer"].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert reasoner.prompts == [f"{sample.prompt}{text}!" for text in ("3+5=9;", "ok", "3+5=9;")]
    assert FirstAnswer().score(rows, context).values["second_answer"].tolist() == [0.0] * 4
    assert SecondAnswer().score(rows, RewardContext()).status["second_answer"] == [Status.ERROR] * 4
