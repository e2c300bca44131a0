"""Pareto selection and the Lagrangian, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms import dual_ascent, lagrangian_advantages, pareto_advantages
from mmrl.rewards.core.reward_aggregation import pareto_rank

NAN = float("nan")


def front(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    columns = rewards.double().numpy()
    return torch.from_numpy(pareto_rank(columns, [1.0] * columns.shape[1], groups.tolist()) == 0)


def test_pareto_front_rows_share_the_advantage_of_their_group():
    """Group 0: places in [0, 1] are (1, 0), (0, 1), (1/2, 1/2) and (1/4, 1/4); three of four are on the front.
    Group 1: one row dominates the other."""
    rewards = torch.tensor([[8.0, 0.0], [0.0, 1.0], [4.0, 0.5], [2.0, 0.25], [1.0, 1.0], [0.0, 0.0]]).double()
    groups = torch.tensor([3, 3, 3, 3, 7, 7])
    got = pareto_advantages(rewards, front(rewards, groups), groups, [3.0, 1.0])
    thirds = 4 / 3
    expected = torch.tensor([0.75 * thirds, 0.25 * thirds, 0.5 * thirds, 0.0, 2.0, 0.0]).double()
    torch.testing.assert_close(got, expected)


def test_pareto_excludes_unscored_rows():
    rewards, groups = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [NAN, 9.0]]), torch.zeros(4, dtype=torch.long)
    torch.testing.assert_close(
        pareto_advantages(rewards, front(rewards, groups), groups), torch.tensor([0.75, 0.75, 0.0, 0.0])
    )


def test_pareto_advantages_of_equal_rewards_are_zero():
    rewards, groups = torch.full((4, 2), 0.3), torch.tensor([0, 0, 1, 1])
    assert not pareto_advantages(rewards, front(rewards, groups), groups).any()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=8), st.sampled_from([0.5, 3.0]))
def test_pareto_ignores_dominated_rows_and_scales(pairs, scale):
    rewards, groups = torch.tensor(pairs).double(), torch.zeros(len(pairs), dtype=torch.long)
    got = pareto_advantages(rewards, front(rewards, groups), groups)
    for row, mine in enumerate(pairs):
        beaten = any(all(o >= m for o, m in zip(other, mine, strict=True)) and other != mine for other in pairs)
        assert got[row] >= 0 and (not beaten or got[row] == 0)
    moved = rewards * torch.tensor([scale, 1.0]) + torch.tensor([0.0, 7.0])
    torch.testing.assert_close(pareto_advantages(moved, front(moved, groups), groups), got)


def test_pareto_rejects_invalid_weights():
    rewards, groups = torch.zeros(2, 2), torch.tensor([0, 0])
    for weights in ([0.0, 0.0], [1.0, -1.0]):
        with pytest.raises(ValueError, match="none may be below 0"):
            pareto_advantages(rewards, torch.tensor([True, True]), groups, weights)


def test_lagrangian_weights_constraints_by_their_multipliers():
    objective, constrained = torch.tensor([2.0, -1.0]).double(), torch.tensor([-4.0, 3.0]).double()
    torch.testing.assert_close(lagrangian_advantages(objective, [constrained], [0.0]), objective)
    torch.testing.assert_close(
        lagrangian_advantages(objective, [constrained, objective], [0.5, 1.5]), torch.tensor([3.0, -1.0]).double() / 3
    )
    for multipliers in ([], [-0.1]):
        with pytest.raises(ValueError, match="expected one multiplier >= 0"):
            lagrangian_advantages(objective, [constrained], multipliers)


def test_dual_ascent_converges_to_the_analytic_multiplier():
    """Maximise -x² subject to x >= 1: the Lagrangian is at its best at x = lambda / 2, so lambda ends at 2."""
    multiplier = 0.0
    for _ in range(200):
        multiplier = dual_ascent(multiplier, mean=multiplier / 2, at_least=1.0, rate=0.5, most=5.0)
    assert multiplier == pytest.approx(2.0, abs=1e-6)
    assert dual_ascent(0.1, mean=3.0, at_least=1.0, rate=0.5, most=5.0) == 0.0
    assert dual_ascent(4.9, mean=-9.0, at_least=1.0, rate=0.5, most=5.0) == 5.0
