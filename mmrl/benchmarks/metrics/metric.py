"""Interface of a metric, and the rows that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.data.sample import Sample

Direction: TypeAlias = Literal["higher", "lower"]
MetricFunction: TypeAlias = Callable[[NDArray[np.int64]], float]
"""Maps row indices [N] int64, with repetitions, to the metric of those rows; NaN if none of them was scored."""


class Metric(Protocol):
    """A number over any number of answers."""

    @property
    def direction(self) -> Direction:
        """The direction of better values."""
        ...

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row once, and return the metric as a function of row indices, for resampling.

        Raises:
            EvaluationError: the rows lack a value or text that the metric reads.
        """
        ...


@dataclass(frozen=True)
class Row:
    """An answer to a sample, with its scores."""

    sample: Sample
    """The sample with its task's instruction, and with true boxes in the coordinates of the answers."""
    text: str | None = None
    """The text of the answer; None if it is an image or a video."""
    values: Mapping[str, float] = field(default_factory=dict)
    """{name of a reward or of an additional value of a reward: score}; NaN if the scorer failed."""
    draw: int = 0
    """The index of the answer among those to this sample."""

    @property
    def id(self) -> str:
        """The id of the sample; samples are resampled with all their answers."""
        return self.sample.id
