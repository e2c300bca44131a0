"""Pareto selection, channels and the Lagrangian, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms import (
    channel_advantages,
    dr_grpo_advantages,
    dual_ascent,
    grpo_advantages,
    lagrangian_advantages,
    learned_weight,
    pareto_advantages,
)
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


RIGHT = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
CALLS = torch.tensor([-1.0, -1.0, 0.0, 0.0, -1.0, 0.0, 0.0, -1.0])
TWO_GROUPS = torch.tensor([4, 4, 4, 4, 9, 9, 9, 9])
EVERY = torch.ones(8, dtype=torch.bool)


def normalised(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return grpo_advantages(rewards, groups, std="group", ddof=0, eps=0.0)


def test_a_channel_is_normalised_among_the_rows_that_take_part():
    """Group 4: three right answers with calls 1, 1 and 0, so mean -2/3 and spread sqrt(2)/3. Group 9: one right answer,
    which has nothing to be compared with; calls of wrong answers do not count."""
    got = channel_advantages([CALLS], [RIGHT > 0], [1.0], TWO_GROUPS, normalised)
    root = 2**0.5
    torch.testing.assert_close(got, torch.tensor([-1 / root, -1 / root, root, 0.0, 0.0, 0.0, 0.0, 0.0]))


def test_channels_are_added_after_each_is_normalised():
    both = channel_advantages([RIGHT, CALLS], [EVERY, RIGHT > 0], [1.0, 0.3], TWO_GROUPS, normalised)
    accuracy = normalised(RIGHT, TWO_GROUPS)
    economy = channel_advantages([CALLS], [RIGHT > 0], [1.0], TWO_GROUPS, normalised)
    torch.testing.assert_close(both, accuracy + 0.3 * economy)
    scaled = channel_advantages([RIGHT, 100 * CALLS], [EVERY, RIGHT > 0], [1.0, 0.3], TWO_GROUPS, normalised)
    torch.testing.assert_close(scaled, both)  # the scale of a reward is no weight


def test_one_channel_of_all_rows_is_the_estimator():
    got = channel_advantages([RIGHT], [EVERY], [1.0], TWO_GROUPS, dr_grpo_advantages)
    torch.testing.assert_close(got, dr_grpo_advantages(RIGHT, TWO_GROUPS))


def test_an_unscored_row_takes_no_part_in_its_channel_alone():
    calls = CALLS.clone()
    calls[0] = NAN
    got = channel_advantages([RIGHT, calls], [EVERY, RIGHT > 0], [1.0, 1.0], TWO_GROUPS, dr_grpo_advantages)
    expected = dr_grpo_advantages(RIGHT, TWO_GROUPS) + torch.tensor([0.0, -0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(got, expected)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_economy_never_tells_wrong_answers_apart_and_sums_to_zero(rows):
    right = torch.tensor([float(row[0]) for row in rows])
    calls, groups = torch.tensor([-float(row[1]) for row in rows]), torch.tensor([row[2] for row in rows])
    got = channel_advantages([calls], [right > 0], [1.0], groups, dr_grpo_advantages)
    assert not got[right == 0].any()
    for group in groups.unique():
        assert abs(float(got[groups == group].sum())) < 1e-5


def test_channels_of_unequal_number_are_refused():
    with pytest.raises(ValueError, match="as many values, masks and weights"):
        channel_advantages([RIGHT], [EVERY, EVERY], [1.0], TWO_GROUPS, dr_grpo_advantages)


def test_a_learned_weight_moves_by_the_cosine_within_its_bounds():
    ahead, aside = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])], [torch.tensor([0.0, 7.0]), torch.tensor([0.0])]
    assert learned_weight(0.5, ahead, [10 * each for each in ahead], 0.25, 2.0) == pytest.approx(0.75)
    assert learned_weight(0.5, ahead, [-each for each in ahead], 0.25, 2.0) == pytest.approx(0.25)
    assert learned_weight(0.5, ahead, [torch.tensor([1.0, 0.0]), torch.tensor([0.0])], 0.5, 2.0) == pytest.approx(0.8)
    assert learned_weight(0.5, ahead, aside, 0.25, 2.0) == 0.5
    assert learned_weight(0.5, ahead, [0 * each for each in ahead], 0.25, 2.0) == 0.5
    assert learned_weight(0.1, ahead, [-each for each in ahead], 0.25, 2.0) == 0
    assert learned_weight(1.9, ahead, ahead, 0.25, 2.0) == 2
    with pytest.raises(ValueError, match="the same parameters"):
        learned_weight(0.5, ahead, ahead[:1], 0.25, 2.0)
