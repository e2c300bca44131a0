"""Estimates, paired differences and outcomes, by hand and against what they must equal."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmrl.benchmarks.metrics import Row
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.data.sample import Sample
from mmrl.evaluation.comparison.aggregate import groups_of
from mmrl.evaluation.comparison.estimates import (
    Answers,
    MeasuredMetric,
    difference,
    estimate,
    mean_estimate,
    win_tie_loss,
)
from mmrl.statistics.intervals import bootstrap, percentile_interval

SHARE = MetricConfig(name="share_at_least", label="share", of="x", args={"threshold": 0.5})
MEAN = MetricConfig(name="mean", label="x", of="x")
LOWER = MetricConfig(name="mean", label="x", of="x", args={"direction": "lower"})
OVER_TAGS = MetricConfig(name="mean_over_tags", label="by tag", of="x")


def measured(values, config=MEAN, draws=1, tags=None) -> MeasuredMetric:
    """Return a measured metric with one row per value and `draws` rows per sample."""
    samples = [Sample(id=f"s{n}", metadata={"tags": [tags[n]]} if tags else {}) for n in range(len(values) // draws)]
    rows = [Row(samples[row // draws], None, {"x": value}, row % draws) for row, value in enumerate(values)]
    return MeasuredMetric(config, Answers(rows, draws))


def all_requested(one: MeasuredMetric):
    return np.ones(len(one.answers.rows), bool)


def test_mean_counts_unscored_rows():
    one = measured([0.0, 1.0, math.nan, 1.0])
    found = estimate(one, all_requested(one), seed=0)
    assert found.value == pytest.approx(2 / 3) and (found.samples, found.unscored) == (3, 1)
    assert found.low < found.value < found.high
    not_requested = np.array([True, True, False, True])
    assert estimate(one, not_requested, seed=0).unscored == 0


def test_difference_uses_rows_scored_for_both():
    before, after = measured([0.0, 0.5, math.nan, 0.2]), measured([1.0, math.nan, 1.0, 0.2])
    found = difference(before, after, seed=0)
    assert found.value == pytest.approx(0.5)  # of s0 and s3 alone
    assert (found.samples, found.dropped) == (2, 2)
    assert (found.wins, found.ties, found.losses) == (1, 1, 0)
    nothing = difference(measured([math.nan]), measured([1.0]), seed=0)
    assert math.isnan(nothing.value) and math.isnan(nothing.low) and nothing.samples == 0
    assert nothing.verdict == "unsure"


def test_paired_interval_is_narrower_than_shared_noise():
    noise = np.random.default_rng(0).normal(size=100)
    found = difference(measured(noise), measured(noise + 0.1), seed=0)
    assert found.low == pytest.approx(0.1) and found.high == pytest.approx(0.1) and found.verdict == "up"


def test_lower_is_better_reverses_wins_and_losses():
    found = difference(measured([1.0, 2.0, 3.0], LOWER), measured([0.0, 1.0, 3.5], LOWER), seed=0)
    assert (found.wins, found.losses) == (2, 1) and found.sign == -1
    sure = difference(measured([1.0] * 9, LOWER), measured([0.0] * 9, LOWER), seed=0)
    assert sure.verdict == "up" and sure.value == -1.0


def test_draws_of_a_sample_are_resampled_together():
    """Ten samples with eight equal draws are no surer than ten with one."""
    values = np.random.default_rng(0).normal(size=10)
    single, many = measured(values), measured(np.repeat(values, 8), draws=8)
    one, other = (estimate(each, all_requested(each), seed=5) for each in (single, many))
    assert (one.low, one.high) == pytest.approx((other.low, other.high)) and other.samples == 10


@pytest.mark.parametrize("config", [MEAN, SHARE])
def test_fast_resampling_equals_the_metric_on_each_resample(config):
    one = measured(np.random.default_rng(0).uniform(size=24), config, draws=2)
    assert one.is_mean_of_samples(one.scored)
    expected = percentile_interval(bootstrap(lambda chosen: one.of_samples(chosen, one.scored), 12, seed=3))
    found = estimate(one, all_requested(one), seed=3)
    assert (found.low, found.high) == pytest.approx(expected)


def test_metrics_without_row_means_are_resampled_as_a_whole():
    tags = ["a"] * 8 + ["b"] * 2
    before = measured([0.0] * 8 + [1.0, 1.0], OVER_TAGS, tags=tags)
    after = measured([0.0] * 8 + [0.0, 0.0], OVER_TAGS, tags=tags)
    assert not before.is_mean_of_samples(before.scored)
    found = difference(before, after, seed=0)
    assert found.value == pytest.approx(-0.5)  # not the mean over samples, -0.2
    assert found.low < -0.2 < found.high <= 0.0  # the resamples without any b say 0
    assert (found.wins, found.ties, found.losses) == (0, 8, 2)


def test_outcomes_exclude_unknown_rows():
    nan = math.nan
    before, after = np.array([0.0, 0.0, 0.0, nan, 1.0]), np.array([1.0, 1e-9, -1.0, 1.0, nan])
    assert win_tie_loss(before, after) == (1, 1, 1) and win_tie_loss(before, after, sign=-1) == (1, 1, 1)
    assert win_tie_loss(before, after, tie=2.0) == (0, 3, 0)


def test_means_exclude_and_count_unknown_rows():
    found = mean_estimate([1.0, math.nan, 3.0], seed=0)
    assert (found.value, found.samples, found.unscored) == (2.0, 2, 1)
    assert math.isnan(mean_estimate([math.nan], seed=0).value) and math.isnan(mean_estimate([1.0], seed=0).low)


def test_groups_are_by_task_source_and_tag():
    samples = [
        Sample(id="a", task="ocr", source="one", metadata={"tags": ["red", "big", "red"]}),
        Sample(id="b", task="ocr", source="two", metadata={"tags": ["red"]}),
        Sample(id="c", source="two"),
    ]
    found = {by: {name: list(of) for name, of in groups.items()} for by, groups in groups_of(samples).items()}
    assert found == {
        "task": {"ocr": [0, 1]},
        "source": {"one": [0], "two": [1, 2]},
        "tag": {"big": [0], "red": [0, 1]},
    }
    assert groups_of([Sample(id="a"), Sample(id="b")]) == {}  # one source says nothing
