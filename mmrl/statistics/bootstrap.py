"""How sure a number is: samples are drawn anew, with replacement, and the number is taken again (the bootstrap).

    over = bootstrap(statistic, count=200, seed=0)     # the statistic on each of the resamples
    interval(over)                                     # where the middle 95 % of them lie

The percentile interval of Efron (Annals of Statistics 7, 1979). Equal counts and seeds give equal resamples, so that
two statistics, of two checkpoints say, may be subtracted resample by resample: their difference is then a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
RESAMPLES = 1000
FEWEST = 200
VISITS = 1_000_000
"""Samples that are looked at in all the resamples of a number: where there are many, fewer resamples tell as much."""
COVERED = 95.0  # percent
_AT_ONCE = 2**20  # numbers in memory together


def resamples_for(count: int) -> int:
    """How many resamples are taken of so many samples.

    >>> resamples_for(200), resamples_for(2000), resamples_for(50_000)
    (1000, 500, 200)
    """
    return max(FEWEST, min(RESAMPLES, VISITS // max(1, count)))


def bootstrap(
    statistic: Callable[[Ints], float],  # of the numbers of samples [count], any of which may come several times
    count: int,
    seed: int,
) -> Floats:  # [resamples_for(count)]; NaN where the statistic is
    """The statistic on every resample."""
    return np.array([statistic(chosen) for block in _choices(count, seed) for chosen in block], np.float64)


def bootstrap_mean(values: Floats, seed: int) -> Floats:
    """As `bootstrap` of the mean of `values` [N], in a hundredth of the time."""
    return np.concatenate([values[block].mean(axis=1) for block in _choices(len(values), seed)])


def interval(over: Floats) -> tuple[float, float]:
    """The lower and upper end of the middle 95 %; resamples on which there was nothing to measure are left out."""
    known = over[np.isfinite(over)]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.percentile(known, [(100 - COVERED) / 2, (100 + COVERED) / 2])
    return float(low), float(high)


def _choices(count: int, seed: int) -> Iterator[Ints]:
    """[.., count] blocks of resamples, in all `resamples_for(count)` of them."""
    left, random = resamples_for(count), np.random.default_rng(seed)
    while left:
        rows = min(left, max(1, _AT_ONCE // max(1, count)))
        yield random.integers(0, count, (rows, count), dtype=np.int64)
        left -= rows
