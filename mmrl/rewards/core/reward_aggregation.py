"""Aggregation of several rewards into one number per answer: columns [B, R] in, totals [B] out, NaN = not scored.

Numpy in float64, so that rewards need no torch in another trainer. Columns are signed: higher is better in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Aggregation = Literal["sum", "gdpo", "pareto"]


def weighted_sum(
    columns: Array,  # [B, R]
    weights: Sequence[float],  # R of them
    renormalise: bool = False,
) -> Array:  # [B]
    """Return the weighted sum of each row, NaN where any of its terms is NaN.

    With `renormalise`, the sum of the known terms is scaled up by the weight of the unknown; a row without any known
    term stays NaN. A reward of weight 0 is ignored.

    >>> weighted_sum(np.array([[1.0, 3.0], [1.0, np.nan]]), [1.0, 1.0])
    array([ 4., nan])
    >>> weighted_sum(np.array([[1.0, 3.0], [1.0, np.nan]]), [1.0, 1.0], renormalise=True)
    array([4., 2.])
    """
    columns, weight = _used(columns, weights)
    if not renormalise:
        return np.asarray((columns * weight).sum(1), np.float64)
    present = np.isfinite(columns)
    known = (present * np.abs(weight)).sum(1)
    total = np.where(present, columns, 0.0) @ weight
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 = NaN where nothing is scored
        return np.asarray(total * np.abs(weight).sum() / known, np.float64)


def gated(
    totals: Array,  # [B]
    gates: Array,  # [B, G] of the gating rewards
    thresholds: Sequence[float] | Array,  # G of them
    floor: float,
) -> Array:  # [B]
    """Return `totals` with `floor` for every answer that is below any of the thresholds, and NaN for unknown gates.

    >>> gated(np.array([5.0, 5.0, 5.0]), np.array([[1.0], [0.0], [np.nan]]), [0.5], floor=-1.0)
    array([ 5., -1., nan])
    """
    unknown = np.isnan(gates).any(1)
    shut = (gates < np.asarray(thresholds)).any(1)
    return np.where(unknown, np.nan, np.where(shut, floor, totals))


def withheld(
    values: Array,  # [B]
    outcomes: Array,  # [B] of the reward that decides
    at_least: float,
) -> Array:  # [B]
    """Return `values` with 0 where the outcome is below its threshold, and NaN where the outcome is unknown.

    Gated reward accumulation (G-RA): immediate rewards add up only in answers whose outcome is good enough.

    >>> withheld(np.array([5.0, 5.0, 5.0]), np.array([1.0, 0.0, np.nan]), at_least=0.5)
    array([ 5.,  0., nan])
    """
    return np.where(np.isnan(outcomes), np.nan, np.where(outcomes >= at_least, values, 0.0))


def gdpo(
    columns: Array,  # [B, R]
    weights: Sequence[float],
    groups: Sequence[int],  # [B]
    eps: float = 1e-4,
) -> Array:  # [B]
    """Return the weighted sum of each reward's z-score within its group (ddof 1; GDPO, arXiv:2601.05242).

    In a sum of raw rewards the one with the widest spread dominates; z-scores count by their weights. The paper whitens
    this sum over the batch next, which is left to the trainer (`mmrl.algorithms.gdpo_advantages` does both in torch).

    >>> gdpo(np.array([[0.0, 0.0], [1.0, 100.0]]), [1.0, 1.0], [0, 0], eps=0.0).round(3)
    array([-1.414,  1.414])
    """
    columns, weight = _used(columns, weights)
    columns = np.where(np.isfinite(columns).all(1, keepdims=True), columns, np.nan)
    scores = np.full(columns.shape, np.nan)
    index = np.asarray(groups)
    for group in np.unique(index):
        rows = np.flatnonzero((index == group) & np.isfinite(columns[:, 0]))
        if len(rows) == 0:
            continue
        values = columns[rows]
        spread = values.std(0, ddof=1) if len(rows) > 1 else np.zeros(values.shape[1])
        constant = np.ptp(values, axis=0) == 0
        centred = np.where(constant, 0.0, values - values.mean(0))
        scores[rows] = np.divide(centred, spread + eps, out=np.zeros_like(centred), where=~constant)
    return np.asarray(scores @ weight, np.float64)


def pareto_front(columns: Array) -> NDArray[np.bool_]:  # [B, R] -> [B]
    """Return the mask of rows that no other row dominates: none is at least as good in every reward and better in one.

    A row with a NaN is on no front and dominates no row. Equal rows are on the front together.

    >>> pareto_front(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    array([ True,  True, False])
    """
    known = np.asarray(np.isfinite(columns).all(1))
    filled = np.where(known[:, None], columns, -np.inf)
    as_good = (filled[:, None] >= filled[None]).all(-1)  # [a, b]: a is at least as good as b in every reward
    better = (filled[:, None] > filled[None]).any(-1)
    return np.asarray(known & ~(as_good & better & known[:, None]).any(0), np.bool_)


def pareto_rank(
    columns: Array,  # [B, R]
    weights: Sequence[float],
    groups: Sequence[int],  # [B]
) -> Array:  # [B]
    """Return minus the index of each answer's Pareto front within its group: 0 is the best front, NaN is unscored.

    Non-dominated sorting (NSGA-II, Deb et al. 2002) of the rewards whose weight is not 0; a negative weight reverses
    its reward, and absolute weights do not matter. Parrot (arXiv:2401.05675) trains on the first front alone.

    >>> pareto_rank(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), [1.0, 1.0], [0, 0, 0])
    array([ 0.,  0., -1.])
    """
    columns, weight = _used(columns, weights)
    columns = columns * np.sign(weight)
    ranks, index = np.full(len(columns), np.nan), np.asarray(groups)
    known = np.asarray(np.isfinite(columns).all(1))
    for group in np.unique(index):
        remaining: NDArray[np.intp] = np.flatnonzero((index == group) & known)
        rank = 0.0
        while len(remaining):
            front = pareto_front(columns[remaining])
            ranks[remaining[front]] = rank
            remaining, rank = remaining[~front], rank - 1
    return ranks


def aggregate(
    kind: Aggregation,
    columns: Array,  # [B, R]
    weights: Sequence[float],
    groups: Sequence[int],  # [B]
    renormalise: bool = False,
) -> Array:  # [B]
    """Return the total of each row by the aggregation that `kind` names."""
    if kind == "sum":
        return weighted_sum(columns, weights, renormalise)
    return gdpo(columns, weights, groups) if kind == "gdpo" else pareto_rank(columns, weights, groups)


def _used(columns: Array, weights: Sequence[float]) -> tuple[Array, Array]:
    weight = np.asarray(weights, np.float64)
    if columns.ndim != 2 or columns.shape[1] != len(weight):
        raise ValueError(f"columns: expected [B, {len(weight)}], one per weight, got {list(columns.shape)}")
    return columns[:, weight != 0], weight[weight != 0]
