"""How sure a difference is: intervals for the same prompts and noise before and after, and for runs that differ in
their seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from mmrl.errors import EvaluationError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval by Student's t; the bounds are NaN where n < 2, the mean too where n = 0."""

    mean: float
    low: float
    high: float
    n: int  # independent values that the mean is over
    dropped: int = 0  # values left out because they could not be scored

    @property
    def verdict(self) -> str:
        """`up` or `down` where the whole interval is on one side of 0, else `unsure`."""
        return "up" if self.low > 0 else "down" if self.high < 0 else "unsure"


def paired_difference(
    before: ArrayLike,  # [N] or [N, draws]; NaN = could not be scored
    after: ArrayLike,  # the same prompts and noise in the same order
) -> Interval:
    """The mean of after - before. Pairs with a NaN are dropped and counted.

    Draws of one prompt are not independent: their differences are averaged first, and n counts prompts.
    """
    first, last, dropped = paired_means(before, after)
    return _interval(last - first, dropped)


def paired_means(before: ArrayLike, after: ArrayLike) -> tuple[Floats, Floats, int]:
    """The means of each prompt over the draws that were scored both times, and how many draws were dropped."""
    first, last = (_by_prompt(values) for values in (before, after))
    if first.shape != last.shape:
        raise EvaluationError(f"cannot pair values of shape {first.shape} with values of shape {last.shape}")
    scored = np.isfinite(first) & np.isfinite(last)
    counts = scored.sum(1)
    known = counts > 0
    means = [np.where(scored, values, 0.0).sum(1)[known] / counts[known] for values in (first, last)]
    return means[0], means[1], int((~scored).sum())


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """The mean of one number per run, with the interval that the spread between the runs implies."""
    given = np.asarray(values, np.float64)
    known = given[np.isfinite(given)]
    return _interval(known, dropped=given.size - known.size)


def _interval(values: Floats, dropped: int) -> Interval:
    n = values.size
    mean = float(values.mean()) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n, dropped)
    half = float(stdtrit(n - 1, 0.975) * values.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n, dropped)


def _by_prompt(values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim not in (1, 2):
        raise EvaluationError(f"expected values of shape [N] or [N, draws], got {array.shape}")
    return array.reshape(array.shape[0], -1) if array.size else array.reshape(array.shape[0], 1)[:0]
