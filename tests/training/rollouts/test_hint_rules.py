"""Hints: the beginning of a solution where a whole group fails, and as few points of knowledge as suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import Capability
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.hint_rules import KnowledgePoints, SolutionHints
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, collect, source

SOLVED = [replace(each, demonstration="one two three four five", metadata={"points": ["one", "two", "three"]})
          for each in questions()]  # fmt: skip


class NeedsHints(TokenPolicy):
    """It is right in every second row, if its answer begins with at least `needs` words or its prompt has as many."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def __init__(self, needs: int = 3, solved: Sequence[str] = ()) -> None:
        super().__init__()
        self.needs, self.solved = needs, solved

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        rollout = super().rollout(requests, seed)
        right = [self._knows(request) and number % 2 == 0 for request in requests for number in range(request.n)]
        media = [sample.answer if good else "0" for sample, good in zip(rollout.samples, right, strict=True)]
        return replace(rollout, media=media, starts=row_starts(requests))

    def _knows(self, request: RolloutRequest) -> bool:
        words = 0 if request.start is None else len(f"{request.start.prefix}{request.start.prompt or ''}".split())
        return request.sample.id in self.solved or words >= self.needs


def started(rule: Any, policy: NeedsHints, samples: Sequence[Sample] = SOLVED):
    suite = RewardSuite([(Exact(), 1.0)], min_valid_share=0.5)
    return source(policy, suite=suite, starts=rule, prompts=PromptSampler(samples, 4, seed=0))


def starts_of(found) -> list[Any]:
    return [s for b in found.micro_batches for s in b.rollout.starts or [None] * b.rollout.rows]


def test_a_failed_prompt_is_answered_with_a_longer_and_longer_beginning():
    rule = SolutionHints(place="prefix")
    policy = NeedsHints(needs=3, solved=("s0", "s1"))
    found = collect(started(rule, policy))
    kept = {batch.rollout.samples[row].id: start for batch in found.micro_batches
            for row, start in enumerate(batch.rollout.starts or [None] * batch.rollout.rows)}  # fmt: skip
    assert kept and all((id in policy.solved) == (start is None) for id, start in kept.items())
    hints = {start.prefix for start in kept.values() if start}
    assert hints == {"one two three "}  # a quarter of five steps is 2, rounded up; a half is 3
    assert len(starts_of(found)) == 24  # as many as without hints
    failed = sum(id not in policy.solved for id in kept)
    assert found.metrics["starts/rows"] == 24 + 2 * 6 * failed
    assert found.metrics["hints/groups"] == failed / 4 and found.metrics["hints/solved"] == 1
    assert found.metrics["zero_variance_share_trained"] == 0
    assert found.metrics["zero_variance_share"] == failed / 4  # without hints


def test_a_solution_is_never_revealed_as_a_whole():
    rule = SolutionHints(shares=(0.5, 1.0))
    sample = Sample("a", demonstration="x y z")
    assert [rule.hint(sample, share) for share in (0.1, 0.5, 1.0)] == ["x ", "x y ", "x y "]
    assert rule.hint(Sample("b", demonstration="x"), 1.0) == "" == rule.hint(Sample("c"), 1.0)
    never = collect(started(rule, NeedsHints(needs=99)))
    assert never.metrics["starts/rounds"] == 3 and never.metrics["hints/solved"] == 0
    none = collect(started(rule, NeedsHints(), questions()))  # without demonstrations
    assert none.metrics["starts/rounds"] == 1 and none.metrics["hints/groups"] == 0


def test_a_hint_follows_the_prompt_of_its_sample():
    rule = SolutionHints(text="{prompt} Begin: {hint}")
    rewritten = starts_of(collect(started(rule, NeedsHints(needs=6))))
    prompts = {start.prompt for start in rewritten if start}
    assert prompts and all(each.startswith("question ") and each.endswith(" Begin: one two three ") for each in prompts)


def test_the_smallest_sufficient_subset_is_trained_on():
    rule = KnowledgePoints(sizes=(1, 2), subsets=3, probes=1, place="prefix", join=" ")
    found = collect(started(rule, NeedsHints(needs=2)))
    starts = starts_of(found)
    assert {len(start.prefix.split()) for start in starts} == {2}
    assert {start.label for start in starts} == {"points"} and len(starts) == 24  # no probe is trained on
    assert found.metrics["starts/reward/probe"] > 0
    none = collect(started(rule, NeedsHints(needs=9)))
    assert {start.prefix for start in starts_of(none)} == {"one two three"}  # all of them, if none suffices
    easy = collect(started(rule, NeedsHints(needs=0)))
    assert easy.metrics["starts/rounds"] == 1 and not any(starts_of(easy))


def test_every_answer_starts_with_all_points():
    rule = KnowledgePoints(use="all", text="{prompt}: {hint}")
    found = collect(started(rule, NeedsHints()))
    assert found.metrics["starts/rounds"] == 1
    assert all(start.prompt.endswith(": one\ntwo\nthree") for start in starts_of(found))
    assert not any(starts_of(collect(started(rule, NeedsHints(), questions()))))


def test_candidates_are_subsets_in_the_order_of_points():
    rule = KnowledgePoints(sizes=(1, 2, 9), subsets=4)
    found = rule.candidates(["a", "b", "c"], np.random.default_rng(0))
    assert [len(each) for each in found] == sorted(len(each) for each in found)
    assert found[-1] == ["a", "b", "c"] and all(each == sorted(each) for each in found)
    assert len({tuple(each) for each in found}) == len(found)
    first = KnowledgePoints(sizes=(2, 1), order="first").candidates(["a", "b", "c"], np.random.default_rng(0))
    assert first == [["a"], ["a", "b"]]


def test_wrong_settings_and_data_are_named():
    with pytest.raises(ValueError, match="shares of a solution"):
        SolutionHints(shares=(0.0,))
    with pytest.raises(ValueError, match="sizes, subsets and probes"):
        KnowledgePoints(sizes=())
    wrong = [replace(each, metadata={"points": "one"}) for each in questions()]
    with pytest.raises(DataError, match=r"metadata\.points to be a list"):
        collect(started(KnowledgePoints(use="all"), NeedsHints(), wrong))
