"""`Sample`: one line of a data set, in the schema that generators and vision-language models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RewardChoice:
    """A reward that a sample names itself, so that one run can mix tasks."""

    name: str
    weight: float = 1.0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A prompt or conversation, the paths of its media, and its reference answers."""

    id: str
    prompt: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    mask: str | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Conditions of a generator by pipeline argument: see `mmrl.data.media.sample_media`."""
    answer: Any = None
    task: str | None = None
    source: str = "default"
    """The data set that the sample comes from; every metric is also reported per source."""
    chosen: Any = None
    rejected: Any = None
    demonstration: Any = None
    rater: str | None = None
    rewards: tuple[RewardChoice, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def last_text(self) -> str:
        """The prompt, or the text of a conversation's last user message; "" if there is none."""
        contents = (turn.get("content", "") for turn in reversed(self.messages) if turn.get("role") == "user")
        content = "" if self.prompt else next(contents, "")
        if self.prompt or isinstance(content, str):
            return self.prompt or str(content)
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []
        return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text" and "text" in part)

    @property
    def tags(self) -> list[str]:
        """The distinct `metadata["tags"]`: clauses, dimensions, skills."""
        tags = self.metadata.get("tags", ())
        listed = [tags] if isinstance(tags, str) else tags if isinstance(tags, list | tuple) else []
        return list(dict.fromkeys(str(tag) for tag in listed))
