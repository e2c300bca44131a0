"""Sub-groups have budgets, and a right answer earns by its length and its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.config.starts import StartsConfig
from mmrl.data.prompts import PromptSampler
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.budget_rule import TokenBudgets, budget_reward, ceiling, subgroup_credit
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, collect, source

RULE = TokenBudgets(budgets=(10, 40), limit=60, prefix="", prompt="{budget} tokens: {prompt}")


class Sized(TokenPolicy):
    """Answers with a budget of 40 are right and have 30 tokens, the others are wrong and have 5."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        rollout = super().rollout(requests, seed)
        starts = row_starts(requests)
        assert starts is not None
        large = [start is not None and start.label == "budget-40" for start in starts]
        media = [str(sample.answer) if each else "no" for sample, each in zip(rollout.samples, large, strict=True)]
        return replace(rollout, media=media, starts=starts, token_ids=[[0] * (30 if each else 5) for each in large])


def started(rule: TokenBudgets, **changes: Any):
    suite = RewardSuite([(Exact(), 1.0)], min_valid_share=0.5)
    settings = {"suite": suite, "starts": rule, "prompts": PromptSampler(questions(), 4, seed=0), "group_size": 6}
    return source(Sized(), **{**settings, **changes})


def test_the_reward_by_hand():
    lengths, budgets = torch.tensor([0.0, 20, 30, 60, 30, 60]), torch.tensor([30.0, 30, 30, 30, 60, 60])
    found = budget_reward(lengths, budgets, limit=60)
    # 4 cos(pi/4) = 2.8284 is the most with a budget of half the limit; 4 cos(pi/2) - 30/60 at the limit itself.
    expected = torch.tensor([2.8284, 2.8284, 2.8284, -0.5, 0.0, 0.0])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    beyond = budget_reward(torch.tensor([40.0]), torch.tensor([30.0]), limit=60)
    assert beyond.item() == pytest.approx(4 * 0.5 - 10 / 60, abs=1e-5)  # cos(pi/3) = 1/2


@given(st.integers(1, 100), st.integers(0, 100), st.integers(1, 40))
def test_longer_answers_never_earn_more_beyond_their_budget_and_budgets_bound_them(budget, length, more):
    one = torch.tensor([float(length), float(length + more)])
    found = budget_reward(one, torch.tensor([float(budget)] * 2), limit=100)
    if length >= budget:
        assert found[1] < found[0]
    assert found.max() <= ceiling(torch.tensor([float(budget)]), 100, 4.0)
    assert budget_reward(one + 100, one + 200, limit=300).equal(ceiling(one + 200, 300, 4.0))  # within: all alike


def test_a_subgroup_lacks_what_its_mean_is_below_the_ceiling():
    credit = subgroup_credit(
        torch.tensor([2.0, 0.0, torch.nan, 3.0, torch.nan]),
        torch.tensor([0, 0, 0, 1, 2]),
        torch.tensor([2.5, 2.5, 2.5, 3.0, 1.0]),
    )
    torch.testing.assert_close(credit, torch.tensor([-1.5, -1.5, -1.5, 0.0, 0.0]))


def test_totals_and_advantages_are_those_of_the_budgets():
    found = collect(started(RULE))
    advantages = torch.cat([batch.advantages for batch in found.micro_batches]).view(4, 6)
    # Three of six totals are 4 cos(pi 40/120) = 2, the ceiling, and three are 0: the mean is 1, the spread 1. The
    # sub-group of 10 lacks its ceiling, 4 cos(pi 10/120) = 3.8637.
    expected = torch.tensor([-1 - 3.8637] * 3 + [1.0] * 3).expand(4, 6)
    torch.testing.assert_close(advantages, expected, atol=1e-3, rtol=0)
    assert found.metrics["reward/budget"] == pytest.approx(0.5)  # half of the answers have 2 in place of 1
    assert found.metrics["budget/over"] == 0 and found.metrics["budget/chosen"] == 40
    assert found.metrics["starts/length/budget-40"] == 30 and found.metrics["starts/share/budget-10"] == 0.5


def test_without_credit_the_whole_group_is_compared():
    found = collect(started(replace(RULE, credit=0.0)))
    advantages = torch.cat([batch.advantages for batch in found.micro_batches]).view(4, 6)
    torch.testing.assert_close(advantages, torch.tensor([-1.0] * 3 + [1.0] * 3).expand(4, 6), atol=1e-3, rtol=0)


def test_answers_beyond_the_limit_earn_nothing():
    found = collect(started(TokenBudgets(budgets=(10, 20), limit=25, prefix="", prompt="{budget}: {prompt}")))
    assert found.metrics["reward/budget"] == 0  # none is right
    late = collect(started(TokenBudgets(budgets=(10, 40), limit=40, prefix="", prompt="{budget}: {prompt}")))
    assert late.metrics["reward/budget"] == pytest.approx(-0.5)  # 4 cos(pi/2) = 0 in place of 1


def test_rows_start_as_the_templates_say():
    requests = [RolloutRequest(questions()[0], 6, 0)]
    small, large = RULE.first(requests, None)
    assert (small.n, small.start.label, small.start.prompt) == (3, "budget-10", "10 tokens: question 0")
    assert (large.n, large.start.prefix, large.start.max_new_tokens) == (3, "", None)
    assert "with 512 tokens" in TokenBudgets((512,), 4096).first(requests, None)[0].start.prefix


def test_what_cannot_work_is_named():
    with pytest.raises(ValueError, match="multiple of 2"):
        collect(started(RULE, group_size=5))
    for args, message in (
        ({"budgets": [], "limit": 9}, "one or more different"),
        ({"budgets": [4, 4], "limit": 9}, "one or more different"),
        ({"budgets": [4, 10], "limit": 9}, "from 1 to limit"),
        ({"budgets": [4], "limit": 9, "scale": 0}, "scale is above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            StartsConfig(name="token_budgets", args=args).rule()
