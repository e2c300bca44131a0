"""Calibration of probabilities: does what is predicted with 80 % come true in 80 % of the cases?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def expected_calibration_error(
    probabilities: NDArray[np.floating],  # [N] in [0, 1], of the event
    happened: NDArray[np.bool_],  # [N]
    bins: int = 10,
) -> float:
    """Return the mean distance of predicted and observed frequencies over bins of equal width, weighted by their size.

    >>> expected_calibration_error(np.array([0.9, 0.9, 0.1, 0.1]), np.array([True, True, False, True]))
    0.25
    """
    if len(probabilities) != len(happened) or not len(probabilities):
        raise ValueError(f"got {len(probabilities)} probabilities of {len(happened)} events")
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = [
        (place == each).mean() * abs(probabilities[place == each].mean() - happened[place == each].mean())
        for each in np.unique(place)
    ]
    return float(round(sum(gaps), 12))
