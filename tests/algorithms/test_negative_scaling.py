"""Negative advantages scaled by the success of their group: by hand, properties, and what of the gradient is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms import grpo_advantages, scaled_negatives
from mmrl.config.algorithms.advantage import AdvantageConfig

GRPO = {"std": "group", "ddof": 0}
REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
GROUPS = torch.tensor([3, 3, 3, 3, 8, 8, 8, 8, 5, 5])


def test_factors_by_hand():
    """A quarter of the first group succeeds: 0.25 + 0.25. Three quarters of the second: 1. None of the third: 0.25."""
    advantages = torch.tensor([0.9, -0.3, -0.4, 0.0, 0.5, 0.5, -1.5, 0.5, -2.0, 1.0])
    found = scaled_negatives(advantages, REWARDS, GROUPS, base=0.25, slope=1.0)
    torch.testing.assert_close(found, torch.tensor([0.9, -0.15, -0.2, 0.0, 0.5, 0.5, -1.5, 0.5, -0.5, 1.0]))


def test_unscored_answers_take_no_part_in_the_success():
    rewards, groups = torch.tensor([1.0, 0.0, math.nan, math.nan]), torch.zeros(4).long()
    found = scaled_negatives(torch.tensor([1.0, -1.0, 0.0, 0.0]), rewards, groups, base=0.0, slope=1.0)
    assert found.tolist() == [1.0, -0.5, 0.0, 0.0]


def test_a_group_without_scores_has_no_advantage():
    nothing = torch.full((2,), math.nan)
    assert scaled_negatives(torch.zeros(2), nothing, torch.zeros(2).long()).tolist() == [0.0, 0.0]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 3))
def test_signs_stay_and_no_advantage_grows(seed, base, slope):
    rng = np.random.default_rng(seed)
    rewards, groups = torch.from_numpy(rng.integers(0, 2, 24)).float(), torch.arange(24) % 3
    plain = grpo_advantages(rewards, groups, **GRPO)
    found = scaled_negatives(plain, rewards, groups, base=base, slope=slope)
    assert (found.sign() * plain.sign() >= 0).all() and (found.abs() <= plain.abs()).all()
    assert torch.equal(found[plain >= 0], plain[plain >= 0])
    order = torch.from_numpy(rng.permutation(24))
    shuffled = scaled_negatives(plain[order], rewards[order], groups[order], base=base, slope=slope)
    torch.testing.assert_close(shuffled, found[order])


def test_the_configured_estimator_is_grpo_with_scaled_failures():
    found = AdvantageConfig(name="scaled_negatives", base=0.5, slope=1.5, ddof=1).estimate(REWARDS, GROUPS)
    plain = grpo_advantages(REWARDS, GROUPS, std="group", ddof=1)
    factors = torch.tensor([1.0, 0.875, 0.875, 0.875] + [1.0] * 6)
    torch.testing.assert_close(found, plain * factors)
    same = AdvantageConfig(name="scaled_negatives", base=1.0).estimate(REWARDS, GROUPS)
    assert torch.equal(same, grpo_advantages(REWARDS, GROUPS, **GRPO))  # the control: nothing is scaled


def test_a_right_action_that_is_not_labelled_keeps_more_of_its_probability():
    """Two of four actions are right and one is labelled: the expected step takes less from the other right one."""
    logits = torch.tensor([0.0, 1.0, -1.0, -1.0])
    drawn = torch.tensor([0, 1, 1, 1, 1, 2, 3, 1])  # as often as they are likely, and the label, 0, once
    rewards, group = (drawn == 0).float(), torch.zeros(8).long()

    def step(advantages):
        chosen = logits.clone().requires_grad_()
        (advantages * chosen.log_softmax(0)[drawn]).sum().backward()
        return chosen.grad[1].item()

    plain = grpo_advantages(rewards, group, **GRPO)
    assert step(plain) < step(scaled_negatives(plain, rewards, group, base=0.0)) < 0


@pytest.mark.parametrize("field", ["base", "slope"])
def test_numbers_below_zero_are_refused(field):
    with pytest.raises(ValueError, match=field):
        AdvantageConfig(name="scaled_negatives", **{field: -0.1})
