"""Which answered thing stands for which true one: one-to-one, and the best there is (Hungarian), not greedy.

Greedy matching depends on the order of the answer, and may leave out pairs that another choice would have made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Matching:
    """Pairs of rows of an answer and of the truth."""

    answered: NDArray[np.intp]  # [K]
    true: NDArray[np.intp]  # [K]
    overlaps: NDArray[np.float64]  # [K]; of each pair
    answers: int  # N
    truths: int  # M

    @property
    def precision(self) -> float:
        """Share of the answer that is matched; 1 where neither side has anything, 0 where only the answer is empty."""
        return len(self.overlaps) / self.answers if self.answers else float(not self.truths)

    @property
    def recall(self) -> float:
        """Share of the truth that is matched; 1 where neither side has anything, 0 where only the truth is empty."""
        return len(self.overlaps) / self.truths if self.truths else float(not self.answers)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.answers + self.truths
        return 2 * len(self.overlaps) / both if both else 1.0


def match(
    overlap: NDArray[np.float64],  # [N, M] of answered and true, in [0, 1]
    threshold: float | NDArray[np.float64],  # scalar, or [M]: one for each true thing
    allowed: NDArray[np.bool_] | None = None,  # [N, M]; None: every pair
) -> Matching:
    """As many pairs as possible that reach the threshold, and among those ways the one of largest total overlap."""
    from scipy.optimize import linear_sum_assignment

    fit = overlap >= threshold
    if allowed is not None:
        fit &= allowed
    # A pair more outweighs any overlap, which is at most 1 a pair.
    worth = np.where(fit, min(overlap.shape) + 1 + overlap, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    kept = fit[rows, columns]
    rows, columns = rows[kept], columns[kept]
    return Matching(rows, columns, overlap[rows, columns], *overlap.shape)
