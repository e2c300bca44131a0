"""Prompts whose rewards vary are trained on, and so are groups that begin with parts of their best answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mmrl.config.starts import StartsConfig
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rewards.core.reward import Reward
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.partial_solutions import PartialSolutions, beginnings
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import collect, source, starts_of_groups

RULE = PartialSolutions(step_end=";", share=1.0)


class Steps(TokenPolicy):
    """It writes two steps and an answer, which is right in `good` of the rows of a sample, from the second row on."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def __init__(self, good: dict[str, int]) -> None:
        super().__init__()
        self.good = good
        self.requested: list[RolloutRequest] = []

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        rollout = super().rollout(requests, seed)
        self.requested += requests
        texts = []
        for each in requests:
            prefix = "" if each.start is None else each.start.prefix
            for row in range(each.n):
                right = 1 <= row <= self.good.get(each.sample.id, 0)
                texts.append(prefix + f"a{row};b{row};{'right' if right else 'wrong'}"[len(prefix) :])
        return replace(rollout, media=texts, starts=row_starts(requests))


class EndsRightly(Reward):
    """`worth` for an answer that ends rightly."""

    name, needs, range = "ends_rightly", ("text",), (0.0, 1.0)

    def __init__(self, worth: float = 1.0) -> None:
        self.worth = worth

    def score_one(self, item) -> float:
        return self.worth * str(item.text).endswith("right")


def test_beginnings_end_after_a_step_and_are_never_the_whole():
    assert beginnings("a;b;c", ";") == ["a;", "a;b;"]
    assert beginnings("a;b;", ";") == ["a;"]
    assert beginnings("a", ";") == [] == beginnings("", ";")


@pytest.mark.integration
def test_states_are_drawn_without_replacement_and_shorter_ones_are_likelier():
    text, rule = "a;b;c;d;e", PartialSolutions(step_end=";", share=0.3, decay=0.5)
    drawn = [rule.states(text, np.random.default_rng(seed)) for seed in range(400)]
    assert all(len(set(states)) == 2 and set(states) <= set(beginnings(text, ";")) for states in drawn)  # 0.3 x 4
    alone = PartialSolutions(step_end=";", share=0.1, decay=0.5)
    firsts = Counter(len(alone.states(text, np.random.default_rng(seed))[0]) // 2 for seed in range(2000))
    for place, expected in enumerate((8 / 15, 4 / 15, 2 / 15, 1 / 15), start=1):  # odds 8 : 4 : 2 : 1
        assert firsts[place] / 2000 == pytest.approx(expected, abs=0.04)


def test_groups_of_states_are_added_and_groups_without_variance_are_left_out():
    policy = Steps({"s0": 2, "s1": 5, "s2": 6, "s3": 1, "s4": 2, "s5": 3, "s6": 0, "s7": 0})
    found = collect(source(policy, EndsRightly(), starts=RULE))
    first, states = policy.requested[:4], policy.requested[4:]
    varied = [each for each in first if policy.good[each.sample.id]]
    assert 0 < len(varied) < 4  # of s6 and s7, no answer is right
    expected = [(each.sample.id, prefix) for each in varied for prefix in ("a1;", "a1;b1;")]  # of the first best row
    assert [(each.sample.id, each.start.prefix) for each in states if each.start] == expected
    assert [each.group for each in states] == list(range(4, 4 + len(states))) and {each.n for each in states} == {6}
    assert found.metrics["partial/prompts"] == len(varied) / 4 and found.metrics["partial/states"] == len(states)
    assert found.metrics["starts/trained_rows"] == 6 * (len(varied) + len(states))
    for batch in found.micro_batches:  # a state is compared in itself
        groups = batch.rollout.group_index
        assert len(starts_of_groups(batch.rollout)) == len(groups.unique())
        for group in groups.unique():
            assert batch.advantages[groups == group].sum() == pytest.approx(0, abs=1e-5)
    kept = {sample.id for batch in found.micro_batches for sample in batch.rollout.samples}
    assert kept == {each.sample.id for each in varied}
    lengths = [len(ids) for batch in found.micro_batches for ids in batch.rollout.token_ids or ()]
    assert found.metrics["tokens"] >= sum(lengths) > 0


def test_answers_that_are_not_good_enough_give_no_states():
    policy = Steps({f"s{place}": 2 for place in range(8)})
    found = collect(source(policy, EndsRightly(worth=0.5), starts=RULE))
    assert found.metrics["partial/prompts"] == 1 and found.metrics["partial/states"] == 0
    assert found.metrics["starts/trained_rows"] == 24 and found.metrics["starts/rounds"] == 1


def test_if_nothing_varies_all_is_trained_on_without_advantages():
    found = collect(source(Steps({}), EndsRightly(), starts=RULE))
    assert found.metrics["partial/prompts"] == 0 == found.metrics["partial/states"]
    assert found.metrics["starts/trained_rows"] == 24
    assert not any(batch.advantages.any() for batch in found.micro_batches)
    small = PartialSolutions(step_end=";", min_std=0.4)  # 1 of 6 right: a standard deviation of 0.37
    assert (
        collect(source(Steps({f"s{n}": 1 for n in range(8)}), EndsRightly(), starts=small)).metrics["partial/prompts"]
        == 0
    )


def test_settings_that_cannot_work_are_named():
    assert StartsConfig(name="partial_solutions", args={"share": 1}).rule() == PartialSolutions(share=1)
    for args in ({"share": 0}, {"decay": 1.5}, {"min_std": 0}, {"step_end": ""}):
        with pytest.raises(ConfigError, match=r"data\.starts: partial_solutions: share"):
            StartsConfig(name="partial_solutions", args=args).rule()
