"""What metrics read: one row an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmrl.data.sample import Sample


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
