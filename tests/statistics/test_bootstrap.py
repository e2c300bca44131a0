"""Intervals by the bootstrap agree with scipy's and with what theory says of means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mmrl.statistics.intervals import bootstrap, bootstrap_mean, percentile_interval, resamples_for


def test_bootstrap_interval_equals_scipy():
    values = np.random.default_rng(0).exponential(size=80)
    low, high = percentile_interval(bootstrap_mean(values, seed=1))
    expected = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    spread = values.std() / math.sqrt(80)
    assert low == pytest.approx(expected.low, abs=0.2 * spread) and high == pytest.approx(
        expected.high, abs=0.2 * spread
    )


def test_bootstrap_interval_of_a_median_equals_scipy():
    values = np.random.default_rng(0).normal(size=60)
    low, high = percentile_interval(bootstrap(lambda chosen: float(np.median(values[chosen])), 60, seed=1))
    expected = stats.bootstrap((values,), np.median, n_resamples=5000, method="percentile", rng=2).confidence_interval
    assert low == pytest.approx(expected.low, abs=0.1) and high == pytest.approx(expected.high, abs=0.1)


def test_bootstrap_interval_of_a_large_mean_is_normal():
    values = np.random.default_rng(0).normal(3.0, 2.0, 2000)
    low, high = percentile_interval(bootstrap_mean(values, seed=0))
    half = 1.96 * values.std() / math.sqrt(2000)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)


@settings(max_examples=15)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(0, 2**31))
def test_fast_bootstrap_equals_the_slow_one(values, seed):
    sample = np.array(values)
    slow = bootstrap(lambda chosen: float(sample[chosen].mean()), len(sample), seed)
    np.testing.assert_allclose(bootstrap_mean(sample, seed), slow, rtol=1e-9, atol=1e-9)
    assert len(slow) == resamples_for(len(sample))


def test_bootstrap_is_deterministic_by_seed():
    values = np.arange(50.0)
    np.testing.assert_array_equal(bootstrap_mean(values, 3), bootstrap_mean(values, 3))
    assert not np.array_equal(bootstrap_mean(values, 3), bootstrap_mean(values, 4))


def test_undefined_resamples_are_left_out():
    assert percentile_interval(np.array([math.nan, 1.0, 1.0, math.nan])) == (1.0, 1.0)
    assert all(math.isnan(end) for end in percentile_interval(np.array([math.nan])))
    assert resamples_for(10**6) == 200
