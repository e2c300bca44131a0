"""Metrics of a comparison with bootstrap intervals, and paired differences with wins, ties and losses.

A `MeasuredMetric` is one metric of one subject that can be taken over any samples, which is what a bootstrap does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from mmrl.benchmarks.metrics import Metric, MetricFunction, Row, build_metric
from mmrl.benchmarks.metrics.means import MeanOfRows
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.statistics.intervals import Floats, Ints, Verdict, bootstrap, bootstrap_mean, percentile_interval, verdict

Bools = NDArray[np.bool_]
TIE = 1e-6
"""Samples whose values differ by at most this are tied."""
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A float whose NaN is null in JSON."""
_NONE = np.zeros(0)


@dataclass(frozen=True)
class Answers:
    """The answers of one subject: N samples with `draws` rows each, row = sample * draws + draw."""

    rows: Sequence[Row]
    draws: int

    def __len__(self) -> int:
        """Return N."""
        return len(self.rows) // self.draws

    def values(self, name: str) -> Floats:
        """Return [N * draws]; NaN where the row was not scored by this reward."""
        return np.array([row.values.get(name, np.nan) for row in self.rows], np.float64)


@dataclass
class MeasuredMetric:
    """A metric of one subject that can be taken over any samples."""

    config: MetricConfig
    answers: Answers
    metric: Metric = field(init=False)
    over: MetricFunction = field(init=False, repr=False)
    known: Bools = field(init=False, repr=False)  # [N * draws]; rows that have the value that the metric reads
    scored: Bools = field(init=False, repr=False)  # [N * draws]; those rows, of samples that the metric counts

    def __post_init__(self) -> None:
        self.metric = build_metric(self.config)
        self.over = self.metric.prepare(self.answers.rows)
        of = self.config.of
        self.known = np.ones(len(self.answers.rows), bool) if of is None else np.isfinite(self.answers.values(of))
        counted = np.isfinite(self.by_sample(self.known))  # a metric may ignore samples: see its tag
        self.scored = self.known & np.repeat(counted, self.answers.draws)

    @property
    def sign(self) -> Literal[1, -1]:
        """1 if more is better, else -1."""
        return 1 if self.metric.direction == "higher" else -1

    def of_samples(self, samples: Ints, rows: Bools | None = None) -> float:
        """Return the metric over some samples, with all their rows or those that are True in `rows` [N * draws]."""
        draws = self.answers.draws
        chosen = (samples[:, None] * draws + np.arange(draws)).ravel()
        chosen = chosen if rows is None else chosen[rows[chosen]]
        return self.over(chosen) if chosen.size else math.nan

    def by_sample(self, rows: Bools) -> Floats:
        """Return [N]: the metric over each single sample, with the rows that are True; NaN where there is none."""
        found = np.full(len(self.answers), np.nan)
        for sample in samples_with_rows(rows, self.answers.draws):
            found[sample] = self.of_samples(np.array([sample]), rows)
        return found

    def is_mean_of_samples(self, rows: Bools) -> bool:
        """Return True if the metric over many samples is the mean of its values on single samples.

        That is so for a mean over rows if all samples have equally many of them.
        """
        counts = rows.reshape(-1, self.answers.draws).sum(axis=1)
        return isinstance(self.metric, MeanOfRows) and len(set(counts[counts > 0].tolist())) <= 1


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval by the bootstrap over samples; the ends are NaN with fewer than two samples."""

    value: Number
    low: Number
    high: Number
    samples: int  # in the number
    unscored: int = 0  # rows that should have been scored for it and could not be


@dataclass(frozen=True)
class MetricDifference:
    """The difference between two subjects on the same samples and noise, second - first, where both were scored."""

    value: Number
    low: Number
    high: Number
    samples: int
    wins: int  # samples on which the second is better: has more, or less where less is better
    ties: int
    losses: int
    dropped: int = 0  # rows that only one of the two was scored for
    sign: Literal[1, -1] = 1  # -1: less is better

    @property
    def verdict(self) -> Verdict:
        """`up` where the whole interval is on the better side of 0, `down` where it is on the worse, else `unsure`."""
        return verdict(self.low, self.high, self.sign)


def samples_with_rows(rows: Bools, draws: int) -> Ints:
    """Return the numbers of the samples with at least one True in `rows` [N * draws]."""
    return np.flatnonzero(rows.reshape(-1, draws).any(axis=1))


def estimate(measured: MeasuredMetric, requested: Bools, seed: int, among: Ints | None = None) -> Estimate:
    """Return the metric over all samples or those `among`, without unscored rows.

    `requested` [N * draws] is True for the rows that should have been scored.
    """
    mine = _rows_of(measured, among)
    rows = measured.scored & mine
    samples = samples_with_rows(rows, measured.answers.draws)
    if measured.is_mean_of_samples(rows):
        resampled = bootstrap_mean(measured.by_sample(rows)[samples], seed) if len(samples) > 1 else _NONE
    else:
        resampled = _resampled(lambda chosen: measured.of_samples(chosen, rows), samples, seed)
    value = measured.of_samples(samples, rows)
    unscored = int((requested & mine & ~measured.known).sum())
    return Estimate(value, *percentile_interval(resampled), len(samples), unscored)


def difference(before: MeasuredMetric, after: MeasuredMetric, seed: int, among: Ints | None = None) -> MetricDifference:
    """Return the paired difference after - before, over the rows that were scored for both."""
    mine = _rows_of(after, among)
    both = before.scored & after.scored & mine
    samples = samples_with_rows(both, after.answers.draws)
    first, last = before.by_sample(both), after.by_sample(both)

    def change(chosen: Ints) -> float:
        return after.of_samples(chosen, both) - before.of_samples(chosen, both)

    if after.is_mean_of_samples(both):
        resampled = bootstrap_mean((last - first)[samples], seed) if len(samples) > 1 else _NONE
    else:
        resampled = _resampled(change, samples, seed)
    dropped = int(((before.scored | after.scored) & mine & ~both).sum())
    counts = win_tie_loss(first, last, after.sign)
    return MetricDifference(
        change(samples), *percentile_interval(resampled), len(samples), *counts, dropped, after.sign
    )


def mean_estimate(values: Sequence[float] | Floats, seed: int) -> Estimate:
    """Return the mean of one number per sample [N]; those that are NaN count as unscored."""
    numbers = np.asarray(values, np.float64)
    known = numbers[np.isfinite(numbers)]
    value = float(known.mean()) if known.size else math.nan
    low, high = percentile_interval(bootstrap_mean(known, seed)) if known.size > 1 else (math.nan, math.nan)
    return Estimate(value, low, high, known.size, int(numbers.size - known.size))


def win_tie_loss(
    before: NDArray[np.float64],  # [N]; NaN = not scored
    after: NDArray[np.float64],
    sign: int = 1,  # -1: less is better
    tie: float = TIE,
) -> tuple[int, int, int]:
    """Return the numbers of samples that `after` wins, ties and loses; pairs with a NaN count as none of the three."""
    change = sign * (after - before)
    return int((change > tie).sum()), int((np.abs(change) <= tie).sum()), int((change < -tie).sum())


def _resampled(statistic: Callable[[Ints], float], samples: Ints, seed: int) -> Floats:
    if len(samples) < 2:
        return _NONE
    return bootstrap(lambda chosen: statistic(samples[chosen]), len(samples), seed)


def _rows_of(measured: MeasuredMetric, among: Ints | None) -> Bools:
    """Return [N * draws]: True for the rows of some samples, or of all."""
    answers = measured.answers
    mine = np.zeros((len(answers), answers.draws), bool)
    mine[slice(None) if among is None else among] = True
    return mine.ravel()
