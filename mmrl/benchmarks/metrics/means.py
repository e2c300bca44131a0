"""Means and shares of the values of rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.benchmarks.metrics.metric import Direction, MetricFunction, Row
from mmrl.errors import EvaluationError

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """The mean of a value; with `tag`, over the samples with that tag, as for each dimension of VBench."""

    of: str
    tag: str | None = None
    direction: Direction = "higher"

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        values = values_of(rows, self.of)
        if self.tag is not None:
            values = np.where([self.tag in tags_of(row) for row in rows], values, math.nan)
        return lambda indices: mean_of_scored(values[indices])


@dataclass(frozen=True)
class ShareAtLeast:
    """The share of answers with a value >= `threshold`: accuracy@0.5 of an IoU, R@1 at an IoU."""

    of: str
    threshold: float
    direction: Direction = "higher"

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        values = values_of(rows, self.of)
        least = min(self.threshold, float(np.float32(self.threshold)))  # values may have been rounded to float32
        reached = np.where(np.isnan(values), math.nan, (values >= least).astype(float))
        return lambda indices: mean_of_scored(reached[indices])


@dataclass(frozen=True)
class MeanOverTags:
    """The mean over tags of each tag's mean, like GenEval's overall score over its six kinds of prompts.

    Only the first tag of a sample counts. Tags without samples in a resample are left out of the mean.
    """

    of: str
    direction: Direction = "higher"

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        values = values_of(rows, self.of)
        if bare := [row.id for row in rows if not tags_of(row)]:
            raise EvaluationError(f"{len(bare)} samples have no tags to take a mean over: {bare[0]!r} is one")
        names, tags = np.unique([tags_of(row)[0] for row in rows], return_inverse=True)

        def over(indices: NDArray[np.int64]) -> float:
            chosen, of_tag = values[indices], tags[indices]
            scored = ~np.isnan(chosen)
            sums = np.bincount(of_tag[scored], chosen[scored], minlength=len(names))
            counts = np.bincount(of_tag[scored], minlength=len(names))
            there = counts > 0
            return float((sums[there] / counts[there]).mean()) if there.any() else math.nan

        return over


def values_of(rows: Sequence[Row], name: str) -> Values:
    """Return one value of each row [N]; NaN if it was not scored or does not apply.

    Raises:
        EvaluationError: no row has the value.
    """
    if rows and not any(name in row.values for row in rows):
        known = ", ".join(dict.fromkeys(value for row in rows for value in row.values)) or "none"
        raise EvaluationError(f"no answer has a value {name!r}: rewards gave {known}")
    return np.array([row.values.get(name, math.nan) for row in rows], np.float64)


def tags_of(row: Row) -> Sequence[str]:
    """Return the tags of a row's sample."""
    tags: Sequence[str] = row.sample.metadata.get("tags", ())
    return tags


def mean_of_scored(values: Values) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    scored = values[~np.isnan(values)]
    return float(scored.mean()) if scored.size else math.nan
