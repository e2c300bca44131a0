"""Advantages by the spread of a task, and factors by difficulty: by hand, their properties, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms import difficulty_factors, dr_grpo_advantages, task_mean_advantages

NAN = math.nan
REWARDS = torch.tensor([0.0, 10.0, 4.0, 6.0, 0.1, 0.3, 0.2, 0.2], dtype=torch.float64)
GROUPS = torch.tensor([4, 4, 7, 7, 9, 9, 2, 2])
TASKS = torch.tensor([0, 0, 0, 0, 5, 5, 5, 5])


def test_a_task_has_one_scale():
    """Variances with divisor n - 1: 50 and 2 in the first task, 0.02 and 0 in the second."""
    wide, narrow = math.sqrt(26.0), math.sqrt(0.01)
    expected = [-5 / wide, 5 / wide, -1 / wide, 1 / wide, -0.1 / narrow, 0.1 / narrow, 0.0, 0.0]
    found = task_mean_advantages(REWARDS, GROUPS, TASKS, eps=0.0)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_population_variances():
    found = task_mean_advantages(REWARDS, GROUPS, TASKS, ddof=0, eps=0.5)
    assert found[1].item() == pytest.approx(5 / (math.sqrt(13.0) + 0.5))


def test_factors_by_hand():
    """With all weight on the group, one of four passes: the good answer is raised and the bad ones lowered."""
    rewards, groups = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]), torch.tensor([0] * 4 + [1] * 4)
    up, down = math.exp(0.5), math.exp(-0.5)
    found = difficulty_factors(rewards, groups, torch.zeros(8).long(), gamma=2.0, smoothing=1.0)
    torch.testing.assert_close(found, torch.tensor([down] * 3 + [up] + [down, down, up, down]))


def test_the_mean_of_the_task_moves_the_bar():
    """Means of 0.3 and 0.7: halfway to the task's 0.5 the first group's bar is 0.4, which its 0.35 does not pass."""
    rewards, groups = torch.tensor([0.25, 0.35, 0.5, 0.9]), torch.tensor([0, 0, 1, 1])
    tasks = torch.zeros(4).long()
    alone = difficulty_factors(rewards, groups, tasks, smoothing=1.0)
    mixed = difficulty_factors(rewards, groups, tasks, smoothing=0.5)
    torch.testing.assert_close(alone, torch.ones(4))
    torch.testing.assert_close(mixed, torch.tensor([math.exp(-0.5), math.exp(0.5), 1.0, 1.0]))
    apart = difficulty_factors(rewards, groups, groups, smoothing=0.5)
    torch.testing.assert_close(apart, alone)


@pytest.mark.integration
@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.1, 50), st.floats(-5, 5))
def test_the_metric_of_another_task_does_not_matter(seed, scale, shift):
    rng = np.random.default_rng(seed)
    rewards, groups = torch.from_numpy(rng.random(24)), torch.arange(24) // 4
    tasks = groups % 2
    plain = task_mean_advantages(rewards, groups, tasks, eps=0.0)
    moved = (scale * rewards + shift).where(tasks == 1, rewards)
    torch.testing.assert_close(task_mean_advantages(moved, groups, tasks, eps=0.0), plain, rtol=1e-6, atol=1e-8)
    order = torch.from_numpy(rng.permutation(24))
    shuffled = task_mean_advantages(rewards[order], groups[order], tasks[order], eps=0.0)
    torch.testing.assert_close(shuffled, plain[order])
    factors = difficulty_factors(rewards, groups, tasks)
    torch.testing.assert_close(difficulty_factors(moved, groups, tasks), factors)
    assert bool(((factors >= math.exp(-0.5)) & (factors <= math.exp(0.5))).all())


def test_within_a_task_it_is_dr_grpo_up_to_a_factor():
    """The control: with the spread of each group, as in GRPO, the ratio would differ between groups."""
    rewards, groups = torch.rand(24, dtype=torch.float64), torch.arange(24) // 4
    ratio = task_mean_advantages(rewards, groups, torch.zeros(24).long()) / dr_grpo_advantages(rewards, groups)
    torch.testing.assert_close(ratio, ratio[:1].expand(24))
    own = task_mean_advantages(rewards, groups, groups) / dr_grpo_advantages(rewards, groups)
    assert own.std() > 0.1


def test_what_was_not_scored_takes_no_part():
    rewards = torch.tensor([1.0, NAN, 3.0, 7.0, NAN, NAN])
    groups, tasks = torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 0, 0, 0, 1, 1])
    found = task_mean_advantages(rewards, groups, tasks, eps=0.0)
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.0, 1.0, 0.0, 0.0, 0.0]) / math.sqrt(2))
    factors = difficulty_factors(rewards, groups, tasks)
    assert factors[[1, 4, 5]].tolist() == [1.0, 1.0, 1.0]
    assert bool(factors.isfinite().all())


@pytest.mark.parametrize("function", [task_mean_advantages, difficulty_factors])
def test_a_group_of_two_tasks_is_refused(function):
    with pytest.raises(ValueError, match="task_index: all answers to a prompt are of one task"):
        function(torch.rand(4), torch.zeros(4).long(), torch.tensor([0, 0, 1, 1]))
