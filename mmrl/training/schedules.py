"""Learning-rate schedules."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    base: float,
    update: int,  # from 0
    total: int,  # updates of the whole run
    warmup: int,
    schedule: Literal["constant", "linear", "cosine"],
) -> float:
    """The learning rate of one update: a linear warm-up, then constant or down to zero at the last update.

    >>> [learning_rate(1.0, update, 10, 2, "linear") for update in (0, 1, 2, 6)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if update < warmup:
        return base * (update + 1) / warmup
    if schedule == "constant":
        return base
    done = min(1.0, (update - warmup) / max(1, total - warmup))
    return base * (1 - done if schedule == "linear" else 0.5 + 0.5 * math.cos(math.pi * done))
