"""Sums, gates, GDPO and Pareto fronts, against brute force, trl and the torch form."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mmrl.algorithms import gdpo_advantages
from mmrl.rewards import Reward, RewardError, RewardInput, RewardSuite, WeightedReward
from mmrl.rewards.core.reward_aggregation import aggregate, gated, gdpo, pareto_front, pareto_rank, weighted_sum

VALUES = st.integers(-3, 3).map(float) | st.just(float("nan"))


def table(least=1, most=3):
    return st.tuples(st.integers(0, 7), st.integers(least, most)).flatmap(
        lambda shape: arrays.arrays(float, shape, elements=VALUES)
    )


@given(table())
def test_sum_is_unknown_with_a_missing_part_unless_renormalised(columns):
    weights = [0.5, 2.0, -1.0][: columns.shape[1]]
    plain, scaled = weighted_sum(columns, weights), weighted_sum(columns, weights, renormalise=True)
    for row, total, renormalised in zip(columns, plain, scaled, strict=True):
        known = [(v, w) for v, w in zip(row, weights, strict=True) if np.isfinite(v)]
        assert np.isnan(total) == (len(known) < len(weights))
        if len(known) == len(weights):
            assert total == pytest.approx(sum(v * w for v, w in known)) == renormalised
        elif known:
            share = sum(abs(w) for _, w in known) / sum(map(abs, weights))
            assert renormalised == pytest.approx(sum(v * w for v, w in known) / share)
        else:
            assert np.isnan(renormalised)


@given(table())
def test_pareto_front_has_non_dominated_rows(columns):
    def dominates(a, b):
        return np.isfinite(a).all() and np.isfinite(b).all() and (a >= b).all() and (a > b).any()

    expected = [np.isfinite(b).all() and not any(dominates(a, b) for a in columns) for b in columns]
    assert pareto_front(columns).tolist() == expected


@given(table(2, 2))
def test_pareto_ranks_count_previous_fronts_without_unscored_rows(columns):
    groups = np.arange(len(columns)) % 2
    ranks = pareto_rank(columns, [1.0, 3.0], groups)
    assert np.isnan(ranks).tolist() == (~np.isfinite(columns).all(1)).tolist()
    for a, b in itertools.permutations(range(len(columns)), 2):
        beats = groups[a] == groups[b] and (columns[a] >= columns[b]).all() and (columns[a] > columns[b]).any()
        if beats and not np.isnan(ranks[[a, b]]).any():
            assert ranks[a] > ranks[b]
    for group in set(groups):
        own = ranks[groups == group]
        assert not np.isfinite(own).any() or np.nanmax(own) == 0


def test_negative_weights_reverse_their_reward_at_any_size():
    columns = np.array([[1.0, 5.0], [1.0, 2.0]])
    assert pareto_rank(columns, [1.0, -9.0], [0, 0]).tolist() == [-1.0, 0.0]


@given(table(2, 2))
def test_gdpo_total_is_the_advantage_in_training(columns):
    groups = np.arange(len(columns)) % 2
    total = torch.from_numpy(gdpo(columns, [1.0, 0.5], groups))
    known = total.isfinite()
    expected = gdpo_advantages(torch.from_numpy(columns), torch.from_numpy(groups), [1.0, 0.5], ddof=1)
    assert known.tolist() == np.isfinite(columns).all(1).tolist()
    if known.sum() > 1 and total[known].std() > 1e-6:
        white = (total - total[known].mean()) / (total[known].std() + 1e-4)
        torch.testing.assert_close(white[known], expected[known], rtol=1e-9, atol=1e-9)


def test_gdpo_balances_rewards_that_a_sum_does_not():
    columns = np.array([[0.0, 90.0], [1.0, 0.0]] * 2)
    groups = [0, 0, 0, 0]
    assert np.argmax(aggregate("sum", columns, [1.0, 1.0], groups)) == 0
    assert np.ptp(aggregate("gdpo", columns, [1.0, 1.0], groups)) == pytest.approx(0, abs=1e-3)


def test_closed_gates_give_the_floor_and_unknown_gates_are_unknown():
    total = gated(np.array([5.0, 5.0, np.nan, 5.0]), np.array([[1.0], [0.4], [1.0], [np.nan]]), [0.5], floor=-2.0)
    np.testing.assert_array_equal(total, [5.0, -2.0, np.nan, np.nan])


class Indicator(Reward):
    """Reads its value from the references."""

    name, range = "provided", (0.0, 1.0)

    def score_one(self, item):
        return item.references[self.name]


class Distance(Indicator):
    name, direction, range = "distance", "lower", (0.0, 4.0)


class Endless(Indicator):
    name, range = "endless", (-float("inf"), 0.0)


def rows(**columns):
    return [
        RewardInput(str(i), 0, "", references=dict(zip(columns, row, strict=True)))
        for i, row in enumerate(zip(*columns.values(), strict=True))
    ]


def test_lower_is_better_rewards_are_subtracted_and_gate_from_above():
    suite = RewardSuite([WeightedReward(Indicator(), 1.0), WeightedReward(Distance(), 0.5, gate=2.0)])
    output = suite.score(rows(provided=[1.0, 1.0], distance=[2.0, 2.1]))
    assert output.values["total"].tolist() == [0.0, -2.0]  # the floor: provided at 0, distance at 4
    assert output.values["distance"].tolist() == pytest.approx([2.0, 2.1])


def test_gates_may_be_outside_the_sum():
    suite = RewardSuite([WeightedReward(Indicator(), 0.0, gate=0.5), WeightedReward(Distance(), 1.0)])
    assert suite.score(rows(provided=[1.0, 0.0], distance=[1.0, 1.0])).values["total"].tolist() == [-1.0, -4.0]


def test_invalid_gates_and_settings_are_rejected():
    with pytest.raises(RewardError, match="endless has no lowest value"):
        RewardSuite([WeightedReward(Endless(), 1.0), WeightedReward(Indicator(), 1.0, gate=0.5)])
    with pytest.raises(RewardError, match="gates go with the aggregation 'sum'"):
        RewardSuite([WeightedReward(Indicator(), 1.0, gate=0.5)], aggregation="pareto")
    with pytest.raises(RewardError, match="renormalise goes with the aggregation 'sum'"):
        RewardSuite([WeightedReward(Indicator(), 1.0)], aggregation="gdpo", renormalise=True)


@pytest.mark.parametrize("edge", [0.7, 0.9, 0.1])
def test_answers_at_the_gate_threshold_pass(edge):
    suite = RewardSuite([WeightedReward(Indicator(), 1.0, gate=edge)])
    below = float(np.nextafter(np.float32(edge), np.float32(0)))
    assert suite.score(rows(provided=[edge, below])).values["total"].tolist() == [np.float32(edge), 0.0]


class Failing(Indicator):
    name = "failing"

    def score_one(self, item):
        raise RuntimeError("down")


def test_gate_floor_is_below_every_renormalised_sum():
    parts = [
        WeightedReward(Indicator(), 1.0),
        WeightedReward(Failing(), 1.0),
        WeightedReward(Distance(), 0.5, gate=2.0),
    ]
    output = RewardSuite(parts, renormalise=True).score(rows(provided=[0.0, 0.0], distance=[1.9, 4.0]))
    assert output.values["total"][1] <= output.values["total"][0]
