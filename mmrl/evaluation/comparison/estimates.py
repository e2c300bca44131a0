"""The numbers of a comparison: each with its interval, and each difference with wins, ties and losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from mmrl.evaluation.comparison.samples import Bools, Measured, has_any
from mmrl.statistics.bootstrap import Floats, Ints, bootstrap, bootstrap_mean, interval

TIE = 1e-6
"""Samples whose values lie no further apart than this are tied."""
Number = Annotated[float, BeforeValidator(lambda given: math.nan if given is None else given)]
"""NaN is null in JSON."""
_NONE = np.zeros(0)


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval by the bootstrap over samples; the ends are NaN where there are fewer than two."""

    value: Number
    low: Number
    high: Number
    samples: int  # that it is made of
    unscored: int = 0  # rows that were to be scored for it and could not be


@dataclass(frozen=True)
class Difference:
    """How far a subject is from another on the same samples and noise: other - one, where both were scored."""

    value: Number
    low: Number
    high: Number
    samples: int
    wins: int  # samples on which the subject is better; where less is better, those where it has less
    ties: int
    losses: int
    dropped: int = 0  # rows that only one of the two, or neither, was scored for
    sign: Literal[1, -1] = 1  # -1: less is better

    @property
    def verdict(self) -> str:
        """`up` where the whole interval is on the better side of 0, `down` where it is on the worse, else `unsure`."""
        low, high = (self.low, self.high) if self.sign > 0 else (-self.high, -self.low)
        return "up" if low > 0 else "down" if high < 0 else "unsure"


def estimate(measured: Measured, asked: Bools, seed: int, among: Ints | None = None) -> Estimate:
    """The metric over all samples or some, of those that were scored. `asked` [N * draws]: rows that were to be."""
    mine = _rows(measured, among)
    rows = measured.scored & mine
    samples = has_any(rows, measured.answers.draws)
    if measured.is_mean_of_samples(rows):
        over = bootstrap_mean(measured.by_sample(rows)[samples], seed) if len(samples) > 1 else _NONE
    else:
        over = _resampled(lambda chosen: measured.of_samples(chosen, rows), samples, seed)
    value = measured.of_samples(samples, rows)
    return Estimate(value, *interval(over), len(samples), int((asked & mine & ~measured.known).sum()))


def difference(before: Measured, after: Measured, seed: int, among: Ints | None = None) -> Difference:
    """What `after` has more than `before`, over the rows for which both were scored."""
    mine = _rows(after, among)
    both = before.scored & after.scored & mine
    samples = has_any(both, after.answers.draws)
    first, last = before.by_sample(both), after.by_sample(both)

    def moved(chosen: Ints) -> float:
        return after.of_samples(chosen, both) - before.of_samples(chosen, both)

    if after.is_mean_of_samples(both):
        over = bootstrap_mean((last - first)[samples], seed) if len(samples) > 1 else _NONE
    else:
        over = _resampled(moved, samples, seed)
    dropped = int(((before.scored | after.scored) & mine & ~both).sum())
    sign: Literal[1, -1] = 1 if after.sign > 0 else -1
    return Difference(moved(samples), *interval(over), len(samples), *outcomes(first, last, sign), dropped, sign)


def mean_estimate(values: Sequence[float] | Floats, seed: int) -> Estimate:
    """The mean of one number a sample [N], of those that are known."""
    given = np.asarray(values, np.float64)
    known = given[np.isfinite(given)]
    value = float(known.mean()) if known.size else math.nan
    low, high = interval(bootstrap_mean(known, seed)) if known.size > 1 else (math.nan, math.nan)
    return Estimate(value, low, high, known.size, int(given.size - known.size))


def outcomes(
    before: NDArray[np.float64],  # [N]; NaN = not scored
    after: NDArray[np.float64],
    sign: int = 1,  # -1: less is better
    tie: float = TIE,
) -> tuple[int, int, int]:
    """How many samples `after` wins, ties and loses; pairs with a NaN are none of the three."""
    moved = sign * (after - before)
    return int((moved > tie).sum()), int((np.abs(moved) <= tie).sum()), int((moved < -tie).sum())


def _resampled(statistic: Callable[[Ints], float], samples: Ints, seed: int) -> Floats:
    if len(samples) < 2:
        return _NONE
    return bootstrap(lambda chosen: statistic(samples[chosen]), len(samples), seed)


def _rows(measured: Measured, among: Ints | None) -> Bools:
    """The rows [N * draws] of some samples."""
    answers = measured.answers
    mine = np.zeros((len(answers), answers.draws), bool)
    mine[slice(None) if among is None else among] = True
    return mine.ravel()
