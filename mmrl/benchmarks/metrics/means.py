"""Means and shares: of the values of rewards, and of the errors of answers that are counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mmrl.benchmarks.metrics import Direction, MetricFunction, Row
from mmrl.data.sample import Sample
from mmrl.errors import EvaluationError
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text
from mmrl.rewards.parsing.integers import parse_count
from mmrl.rewards.rules.numeric import true_count

Values = NDArray[np.float64]


class MeanOfRows:
    """A metric that is the mean over rows of a value of each row, which a bootstrap takes much faster than others."""

    def of_rows(self, rows: Sequence[Row]) -> Values:
        """Return the value [N] of each row; NaN if it was not scored or does not count."""
        raise NotImplementedError

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        values = self.of_rows(rows)
        return lambda indices: mean_of_scored(values[indices])


@dataclass(frozen=True)
class Mean(MeanOfRows):
    """The mean of a value; with `tag`, over the samples with that tag, as for each dimension of VBench."""

    of: str
    tag: str | None = None
    direction: Direction = "higher"

    def of_rows(self, rows: Sequence[Row]) -> Values:
        """See `MeanOfRows.of_rows`."""
        values = values_of(rows, self.of)
        return values if self.tag is None else np.where([self.tag in row.sample.tags for row in rows], values, math.nan)


@dataclass(frozen=True)
class ShareAtLeast(MeanOfRows):
    """The share of answers with a value >= `threshold`: accuracy@0.5 of an IoU, R@1 at an IoU."""

    of: str
    threshold: float
    direction: Direction = "higher"

    def of_rows(self, rows: Sequence[Row]) -> Values:
        """See `MeanOfRows.of_rows`."""
        values = values_of(rows, self.of)
        least = min(self.threshold, float(np.float32(self.threshold)))  # values may have been rounded to float32
        return np.where(np.isnan(values), math.nan, (values >= least).astype(float))


@dataclass(frozen=True)
class CountError(MeanOfRows):
    """The mean absolute error of counts; an answer that is not a count is read as 0."""

    direction: ClassVar[Direction] = "lower"

    def of_rows(self, rows: Sequence[Row]) -> Values:
        """See `MeanOfRows.of_rows`."""
        return np.array([abs((_answered_count(row) or 0) - _truth(row.sample)) for row in rows], np.float64)


@dataclass(frozen=True)
class CountWithin(MeanOfRows):
    """The share of counts with an error of at most `margin`; an answer that is not a count is outside."""

    margin: int = 1
    direction: ClassVar[Direction] = "higher"

    def of_rows(self, rows: Sequence[Row]) -> Values:
        """See `MeanOfRows.of_rows`."""
        counts = [(_answered_count(row), _truth(row.sample)) for row in rows]
        return np.array([answer is not None and abs(answer - true) <= self.margin for answer, true in counts], float)


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
        if bare := [row.id for row in rows if not row.sample.tags]:
            raise EvaluationError(f"{len(bare)} samples have no tags to take a mean over: {bare[0]!r} is one")
        names, tags = np.unique([row.sample.tags[0] for row in rows], return_inverse=True)

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


def mean_of_scored(values: Values) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    scored = values[~np.isnan(values)]
    return float(scored.mean()) if scored.size else math.nan


def final_answer(row: Row) -> str:
    """Return the final answer of a row's text.

    Raises:
        EvaluationError: the row has no text.
        InvalidAnswer: the text is not in the expected answer format.
    """
    if row.text is None:
        raise EvaluationError(f"sample {row.id!r} has no answer in text, which this metric reads")
    form: AnswerFormat = row.sample.metadata.get("answer_form", "auto")
    return answer_text(row.text, form)


def _answered_count(row: Row) -> int | None:
    """Return the count of an answer; None if it has none."""
    try:
        return parse_count(final_answer(row))
    except InvalidAnswer:
        return None


def _truth(sample: Sample) -> int:
    try:
        return true_count(sample.answer)
    except ScoringFailed as err:
        raise EvaluationError(f"sample {sample.id!r}: {err}") from None
