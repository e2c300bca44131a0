"""Metrics of answers that are counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mmrl.benchmarks.metrics.metric import Direction, MetricFunction, Row
from mmrl.data.sample import Sample
from mmrl.errors import EvaluationError
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text
from mmrl.rewards.parsing.integers import parse_count
from mmrl.rewards.rules.numeric import true_count


@dataclass(frozen=True)
class CountError:
    """The mean absolute error of counts; an answer that is not a count is read as 0."""

    direction: ClassVar[Direction] = "lower"

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        off = count_errors(rows)
        return lambda indices: float(off[indices].mean())


@dataclass(frozen=True)
class CountWithin:
    """The share of counts with an error of at most `margin`; an answer that is not a count is outside."""

    margin: int = 1
    direction: ClassVar[Direction] = "higher"

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        read = np.array([answered_count(row) is not None for row in rows])
        near = read & (count_errors(rows) <= self.margin)
        return lambda indices: float(near[indices].mean())


def count_errors(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the absolute error [N] of each answer."""
    return np.array([abs((answered_count(row) or 0) - _truth(row.sample)) for row in rows], np.float64)


def answered_count(row: Row) -> int | None:
    """Return the count of an answer; None if it has none."""
    try:
        return parse_count(final_answer(row))
    except InvalidAnswer:
        return None


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


def _truth(sample: Sample) -> int:
    try:
        return true_count(sample.answer)
    except ScoringFailed as err:
        raise EvaluationError(f"sample {sample.id!r}: {err}") from None
