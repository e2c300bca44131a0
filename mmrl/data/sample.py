"""One line of a data set: the schema that generators and vision-language models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RewardChoice:
    """A reward that a sample asks for by itself, so that one run can mix tasks."""

    name: str
    weight: float = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A prompt or conversation, its media as paths, and what is known about a right answer."""

    id: str
    prompt: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    mask: str | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """What a generator is given beside the prompt, by argument of its pipeline: see `mmrl.data.media.conditions`."""
    answer: Any = None
    task: str | None = None
    source: str = "default"
    """Which data set the sample came from; every metric is also reported per source."""
    chosen: Any = None
    rejected: Any = None
    demonstration: Any = None
    rater: str | None = None
    rewards: tuple[RewardChoice, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
