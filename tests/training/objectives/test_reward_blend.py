"""Learnt weights of channels: the gradient is that of the weighted sum, and a weight follows the outer gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.algorithms.reward_channels import ChannelConfig
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.reward_blend import BlendedRewards
from tests.training.objectives.scored_batches import batch_of, cut, gradient_of
from tests.training.token_policy import TokenPolicy

COUNTS = [1.0, -0.5, 0.3, -0.8, 0.2, 0.6, -1.0, 0.9]
HELPS = [0.9, -0.4, 0.2, -0.9, 0.1, 0.5, -1.1, 1.0]
MISLEADS = [-value for value in COUNTS]


def blended(policy, weight=0.5, rate=0.5):
    channels = [
        ChannelConfig(rewards=("a",)),
        ChannelConfig(rewards=("b",), weight=weight, learn={"rate": rate, "most": 2.0}),
    ]
    return BlendedRewards(PolicyGradient(policy, GRPOConfig(), max_decisions=3), policy, channels)


def with_parts(policy, *parts, seed=0):
    batch = batch_of(policy, parts[0], seed)
    return replace(batch, parts=torch.tensor(parts))


def iterate(objective, policy, *parts, seed=0):
    gradient_of(objective, policy, [with_parts(policy, *parts, seed=seed)])
    objective.finish_iteration(1)
    return objective.weights[1]


def test_the_gradient_is_that_of_the_weighted_sum_of_advantages():
    policy = TokenPolicy()
    summed = [a + 0.5 * b for a, b in zip(COUNTS, HELPS, strict=True)]
    plain = PolicyGradient(policy, GRPOConfig(), max_decisions=3)
    expected, _ = gradient_of(plain, policy, [batch_of(policy, summed)])
    got, metrics = gradient_of(blended(policy), policy, [with_parts(policy, COUNTS, HELPS)])
    torch.testing.assert_close(got, expected)
    assert metrics.values()["blend/b"] == 0.5


def test_the_cut_into_micro_batches_changes_nothing():
    policy = TokenPolicy()
    batch = with_parts(policy, COUNTS, HELPS)
    whole, _ = gradient_of(blended(policy), policy, [batch])
    rows = [range(3), range(3, 8)]
    parts = [replace(part, parts=batch.parts[:, list(own)]) for part, own in zip(cut(batch, 3), rows, strict=True)]
    halves, _ = gradient_of(blended(policy), policy, parts)
    torch.testing.assert_close(halves, whole)


def test_a_heuristic_that_opposes_what_counts_loses_its_weight_and_one_that_agrees_gains():
    policy = TokenPolicy()
    for heuristic, expected in ((MISLEADS, [0.5, 0.0, 0.0]), (COUNTS, [0.5, 1.0, 1.5])):
        objective = blended(policy)
        found = [iterate(objective, policy, COUNTS, heuristic) for _ in range(3)]
        assert found == pytest.approx(expected, abs=1e-5)
    fixed = blended(policy, rate=0.0)
    assert [iterate(fixed, policy, COUNTS, MISLEADS) for _ in range(3)] == [0.5] * 3


def test_what_counts_now_is_compared_with_the_heuristic_of_the_iteration_before():
    policy = TokenPolicy()
    objective = blended(policy, rate=0.1)
    iterate(objective, policy, COUNTS, COUNTS)
    assert iterate(objective, policy, COUNTS, MISLEADS) == pytest.approx(0.6)
    assert iterate(objective, policy, COUNTS, COUNTS) == pytest.approx(0.5)


def test_an_iteration_that_overflows_moves_no_weight_and_is_not_compared_with():
    policy = TokenPolicy()
    first, second = blended(policy), blended(policy)
    for objective in (first, second):
        iterate(objective, policy, COUNTS, HELPS)
    first.backward(with_parts(policy, COUNTS, MISLEADS), math.inf, 0, MetricAccumulator())
    first.finish_iteration(1)
    assert first.weights[1] == 0.5
    assert iterate(first, policy, COUNTS, HELPS) == iterate(second, policy, COUNTS, HELPS) > 0.5


def test_a_resumed_run_goes_on_with_the_weight_and_the_gradient():
    policy = TokenPolicy()
    first, second = blended(policy), blended(policy)
    iterate(first, policy, COUNTS, HELPS)
    iterate(first, policy, COUNTS, HELPS, seed=1)
    second.load_state_dict(first.state_dict())
    assert iterate(first, policy, COUNTS, MISLEADS) == iterate(second, policy, COUNTS, MISLEADS)
    assert second.weights[1] != 0.5


def test_a_micro_batch_without_its_channels_is_refused():
    policy = TokenPolicy()
    with pytest.raises(ValueError, match="does not tell its channels apart"):
        gradient_of(blended(policy), policy, [batch_of(policy, COUNTS)])
