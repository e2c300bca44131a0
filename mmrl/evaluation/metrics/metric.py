"""What a metric is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.evaluation.metrics.rows import Row

Direction: TypeAlias = Literal["higher", "lower"]
Over: TypeAlias = Callable[[NDArray[np.int64]], float]
"""The number over the rows of these indices [N], any of which may come several times; NaN: nothing there was scored."""


class Metric(Protocol):
    """One number over any number of rows."""

    @property
    def direction(self) -> Direction:
        """Which numbers are better."""
        ...

    def prepare(self, rows: Sequence[Row]) -> Over:
        """Read every row once, so that many choices of them can be summed up.

        Raises:
            EvaluationError: the rows do not hold what the metric reads.
        """
        ...
