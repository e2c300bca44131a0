"""What a metric is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.data.sample import Sample

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


# What metrics read: one row an answer.


@dataclass(frozen=True)
class Row:
    """One answer to one sample, and what it was scored."""

    sample: Sample
    """As it was asked: with its task's instruction, and boxes in the coordinates that answers count in."""
    text: str | None = None
    """The answer of a VLM; None where it is a picture or a video, which rewards alone look at."""
    values: Mapping[str, float] = field(default_factory=dict)
    """By reward, and by the names of what a reward gives beside its own value; NaN: the scorer failed."""
    draw: int = 0
    """Which of the answers to this sample."""

    @property
    def id(self) -> str:
        """Of the sample: what is resampled is samples, with all their answers."""
        return self.sample.id
