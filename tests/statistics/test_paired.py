"""Intervals against scipy's own."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mmrl.evaluation import EvaluationError, mean_over_seeds, paired_difference
from mmrl.statistics.intervals import welch_interval


@given(st.integers(2, 200), st.integers(0, 2**32 - 1))
def test_interval_equals_a_paired_t_test(n, seed):
    random = np.random.default_rng(seed)
    before = random.normal(0.3, 0.2, n)
    after = before + random.normal(0.05, 0.1, n)
    truth = stats.ttest_rel(after, before).confidence_interval(0.95)
    got = paired_difference(before, after)
    assert (got.low, got.high) == pytest.approx((truth.low, truth.high), rel=1e-9, abs=1e-12)
    assert got.mean == pytest.approx((after - before).mean()) and (got.n, got.dropped) == (n, 0)
    unpaired = stats.ttest_ind(after, before).confidence_interval(0.95)  # the control: what pairing must not be
    assert n < 20 or got.high - got.low < 0.7 * (unpaired.high - unpaired.low)


def test_unscored_pairs_are_dropped_and_counted():
    before, after = [0.0, math.nan, 1.0, 2.0, 3.0], [1.0, 1.0, math.nan, 4.0, 6.0]
    got, truth = paired_difference(before, after), stats.ttest_rel([1, 4, 6], [0, 2, 3]).confidence_interval()
    assert (got.mean, got.n, got.dropped) == (2.0, 3, 2)
    assert (got.low, got.high) == pytest.approx((truth.low, truth.high))


def test_draws_of_one_prompt_count_once():
    random = np.random.default_rng(0)
    before, after = random.normal(size=(30, 1)), random.normal(size=(30, 1))
    one, repeated = (
        paired_difference(before[:, 0], after[:, 0]),
        paired_difference(before.repeat(8, 1), after.repeat(8, 1)),
    )
    assert (repeated.low, repeated.high, repeated.n) == pytest.approx((one.low, one.high, 30))
    holes = np.array([[1.0, math.nan], [math.nan, math.nan]]), np.array([[3.0, 9.0], [1.0, 1.0]])
    assert (paired_difference(*holes).mean, paired_difference(*holes).n, paired_difference(*holes).dropped) == (2, 1, 3)


def test_verdicts_at_small_sample_sizes():
    assert paired_difference([0, 0, 0], [1, 1.1, 0.9]).verdict == "up"
    assert paired_difference([1, 1.1, 0.9], [0, 0, 0]).verdict == "down"
    assert paired_difference([0, 0], [1, -1]).verdict == "unsure"
    same = paired_difference([0.0, 0.0], [1.0, 1.0])
    assert (same.low, same.mean, same.high, same.verdict) == (1, 1, 1, "up")
    alone = paired_difference([0.0], [1.0])
    assert alone.mean == 1 and math.isnan(alone.low) and math.isnan(alone.high) and alone.verdict == "unsure"
    none = paired_difference([math.nan], [1.0])
    assert math.isnan(none.mean) and (none.n, none.dropped) == (0, 1)
    assert paired_difference([], []).n == 0
    with pytest.raises(EvaluationError, match=r"cannot pair values of shape \(2, 1\) with values of shape \(3, 1\)"):
        paired_difference([1, 2], [1, 2, 3])


def test_mean_over_seeds_equals_a_t_interval():
    values = [0.1, 0.2, 0.25]
    got = mean_over_seeds([*values, math.nan])
    truth = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert (got.low, got.high) == pytest.approx(truth) and (got.n, got.dropped) == (3, 1)
    assert mean_over_seeds([0.1]).n == 1 and math.isnan(mean_over_seeds([0.1]).low)


@pytest.mark.parametrize("level", [0.05, 1e-4, 1e-9])
def test_welch_intervals_are_those_of_scipy(level):
    rng = np.random.default_rng(0)
    before, after = rng.normal(0, 1, 7), rng.normal(0.4, 3, 12)
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(1 - level)
    assert welch_interval(before, after, level) == pytest.approx((expected.low, expected.high), rel=1e-6)


def test_welch_intervals_without_variance_are_points():
    assert welch_interval([1.0, 1.0], [0.5, 0.5], 0.01) == (-0.5, -0.5)
    with pytest.raises(EvaluationError, match="two values or more of each; got 1 and 2"):
        welch_interval([1.0], [0.5, 0.5], 0.01)
