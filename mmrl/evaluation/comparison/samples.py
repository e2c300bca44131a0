"""What one subject answered, as metrics read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmrl.benchmarks.metrics import Metric, Over, Row, build_metric
from mmrl.benchmarks.protocol import MetricConfig

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MEANS_OF_ROWS = ("mean", "share_at_least", "count_error", "count_within")
"""Metrics that are a mean over rows, which a bootstrap takes much faster than any other number."""


@dataclass(frozen=True)
class Answers:
    """N samples with `draws` rows each: row = sample * draws + draw."""

    rows: Sequence[Row]
    draws: int

    def __len__(self) -> int:
        """N."""
        return len(self.rows) // self.draws

    def values(self, name: str) -> Floats:
        """[N * draws]; NaN: not scored, or not asked for."""
        return np.array([row.values.get(name, np.nan) for row in self.rows], np.float64)


@dataclass
class Measured:
    """One metric of one subject, taken of any samples."""

    config: MetricConfig
    answers: Answers
    metric: Metric = field(init=False)
    over: Over = field(init=False, repr=False)
    known: Bools = field(init=False, repr=False)  # [N * draws]; rows that have what the metric is made of
    scored: Bools = field(init=False, repr=False)  # [N * draws]; those of samples that the metric looks at

    def __post_init__(self) -> None:
        self.metric = build_metric(self.config)
        self.over = self.metric.prepare(self.answers.rows)
        of = self.config.of
        self.known = np.ones(len(self.answers.rows), bool) if of is None else np.isfinite(self.answers.values(of))
        looked_at = np.isfinite(self.by_sample(self.known))  # a metric may pass over samples: see its tag
        self.scored = self.known & np.repeat(looked_at, self.answers.draws)

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.metric.direction == "higher" else -1

    def of_samples(self, samples: Ints, rows: Bools | None = None) -> float:
        """The number over some samples, with all their rows or with those that `rows` [N * draws] lets through."""
        draws = self.answers.draws
        chosen = (samples[:, None] * draws + np.arange(draws)).ravel()
        chosen = chosen if rows is None else chosen[rows[chosen]]
        return self.over(chosen) if chosen.size else float("nan")

    def by_sample(self, rows: Bools) -> Floats:
        """[N]: the number over each sample alone, with the rows that are let through; NaN where none is."""
        found = np.full(len(self.answers), np.nan)
        for sample in has_any(rows, self.answers.draws):
            found[sample] = self.of_samples(np.array([sample]), rows)
        return found

    def is_mean_of_samples(self, rows: Bools) -> bool:
        """Whether the number over many samples is the mean of their own numbers: of a mean over rows, where each
        sample has as many of them as any other."""
        counts = rows.reshape(-1, self.answers.draws).sum(axis=1)
        return self.config.name in MEANS_OF_ROWS and len(set(counts[counts > 0].tolist())) <= 1


def has_any(rows: Bools, draws: int) -> Ints:
    """The samples of which at least one row is let through."""
    return np.flatnonzero(rows.reshape(-1, draws).any(axis=1))
