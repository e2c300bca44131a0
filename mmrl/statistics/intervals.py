"""95 % confidence intervals: Student's t for paired differences and for means over runs, the bootstrap for the rest.

    paired_difference(before, after)                    # Interval of the mean of after - before
    mean_over_seeds([0.11, 0.13, 0.09])                 # Interval of a mean over runs
    resampled = bootstrap(statistic, count=200, seed=0) # the statistic on each resample
    percentile_interval(resampled)                      # the middle 95 % of them

The bootstrap draws samples with replacement and takes the statistic again; its interval is Efron's percentile interval
(Annals of Statistics 7, 1979). Equal counts and seeds give equal resamples, so the statistics of two checkpoints may be
subtracted resample by resample: the result is a paired difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from mmrl.errors import EvaluationError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Verdict = Literal["up", "down", "unsure"]
COVERED = 95.0  # percent
MAX_RESAMPLES, MIN_RESAMPLES = 1000, 200
SAMPLE_READS = 1_000_000
"""Samples read in all resamples of one number: with many samples, fewer resamples give the same precision."""
_BLOCK = 2**20  # numbers in memory together


class Bounded(Protocol):
    """An object with the two ends of an interval."""

    @property
    def low(self) -> float:
        """The lower end; NaN without an interval."""

    @property
    def high(self) -> float:
        """The upper end; NaN without an interval."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval by Student's t; the bounds are NaN where n < 2, the mean too where n = 0."""

    mean: float
    low: float
    high: float
    n: int  # independent values in the mean
    dropped: int = 0  # values left out because they could not be scored

    @property
    def verdict(self) -> Verdict:
        """`up` or `down` where the whole interval is on one side of 0, else `unsure`."""
        return verdict(self.low, self.high)


def verdict(low: float, high: float, sign: int = 1) -> Verdict:
    """Return `up` or `down` if the whole interval is on one side of 0, else `unsure`; with `sign` -1, less is better.

    >>> verdict(0.1, 0.3), verdict(0.1, 0.3, sign=-1), verdict(-0.1, 0.3)
    ('up', 'down', 'unsure')
    """
    low, high = (low, high) if sign > 0 else (-high, -low)
    return "up" if low > 0 else "down" if high < 0 else "unsure"


def interval_text(interval: Bounded) -> str:
    """Return an interval as text, such as `+0.101 to +0.230`, or `needs two or more` without one."""
    return f"{interval.low:+.3f} to {interval.high:+.3f}" if math.isfinite(interval.low) else "needs two or more"


def paired_difference(
    before: ArrayLike,  # [N] or [N, draws]; NaN = could not be scored
    after: ArrayLike,  # the same prompts and noise in the same order
) -> Interval:
    """Return the mean of after - before with its t-interval. Pairs with a NaN are dropped and counted.

    Draws of one prompt are not independent: their differences are averaged first, and n counts prompts.

    Raises:
        EvaluationError: the two differ in shape, or have more than two dimensions.
    """
    first, last, dropped = paired_means(before, after)
    return _t_interval(last - first, dropped)


def paired_means(before: ArrayLike, after: ArrayLike) -> tuple[Floats, Floats, int]:
    """Return the means of each prompt over the draws scored both times, and the number of draws dropped."""
    first, last = (_by_prompt(values) for values in (before, after))
    if first.shape != last.shape:
        raise EvaluationError(f"cannot pair values of shape {first.shape} with values of shape {last.shape}")
    scored = np.isfinite(first) & np.isfinite(last)
    counts = scored.sum(1)
    known = counts > 0
    means = [np.where(scored, values, 0.0).sum(1)[known] / counts[known] for values in (first, last)]
    return means[0], means[1], int((~scored).sum())


def welch_interval(before: ArrayLike, after: ArrayLike, level: float) -> tuple[float, float]:  # [n], [m]
    """Return the interval of mean(after) - mean(before) that errs with a probability of `level`, by Welch's t.

    The two samples are independent and may differ in variance; without any variance both ends are the difference.

    Raises:
        EvaluationError: a sample has fewer than two values.
    """
    first, last = (np.asarray(values, np.float64) for values in (before, after))
    if min(first.size, last.size) < 2:
        raise EvaluationError(f"Welch's interval needs two values or more of each; got {first.size} and {last.size}")
    difference = float(last.mean() - first.mean())
    shares = [float(values.var(ddof=1)) / values.size for values in (first, last)]
    if not (total := sum(shares)):
        return difference, difference
    freedom = total**2 / sum(share**2 / (values.size - 1) for share, values in zip(shares, (first, last), strict=True))
    half = float(stdtrit(freedom, 1 - level / 2)) * math.sqrt(total)
    return difference - half, difference + half


def mean_over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of one number per run, with the t-interval that the spread between the runs implies."""
    numbers = np.asarray(values, np.float64)
    known = numbers[np.isfinite(numbers)]
    return _t_interval(known, dropped=numbers.size - known.size)


def resamples_for(count: int) -> int:
    """Return the number of resamples taken of `count` samples.

    >>> resamples_for(200), resamples_for(2000), resamples_for(50_000)
    (1000, 500, 200)
    """
    return max(MIN_RESAMPLES, min(MAX_RESAMPLES, SAMPLE_READS // max(1, count)))


def bootstrap(
    statistic: Callable[[Ints], float],  # of sample numbers [count], any of which may occur several times
    count: int,
    seed: int,
) -> Floats:  # [resamples_for(count)]; NaN where the statistic is
    """Return the statistic on every resample."""
    return np.array([statistic(chosen) for block in _resamples(count, seed) for chosen in block], np.float64)


def bootstrap_mean(values: Floats, seed: int) -> Floats:
    """Return what `bootstrap` gives for the mean of `values` [N], about a hundred times faster."""
    return np.concatenate([values[block].mean(axis=1) for block in _resamples(len(values), seed)])


def percentile_interval(resampled: Floats) -> tuple[float, float]:
    """Return the ends of the middle 95 % of the resamples; those with a NaN are left out."""
    known = resampled[np.isfinite(resampled)]
    if not known.size:
        return math.nan, math.nan
    low, high = np.percentile(known, [(100 - COVERED) / 2, (100 + COVERED) / 2])
    return float(low), float(high)


def _t_interval(values: Floats, dropped: int) -> Interval:
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


def _resamples(count: int, seed: int) -> Iterator[Ints]:
    """Yield [.., count] blocks of sample numbers, `resamples_for(count)` rows in all."""
    remaining, random = resamples_for(count), np.random.default_rng(seed)
    while remaining:
        rows = min(remaining, max(1, _BLOCK // max(1, count)))
        yield random.integers(0, count, (rows, count), dtype=np.int64)
        remaining -= rows
