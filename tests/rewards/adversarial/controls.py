"""Controls: a reward, an answer that it must score well, and hostile ones that it must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.rewards import Reward, RewardInput
from mmrl.rewards.core.reward_io import RewardContext


@dataclass(frozen=True)
class Place:
    """A folder for the files of a reward, and a stack that closes its servers."""

    folder: Path
    stack: ExitStack


@dataclass(frozen=True)
class Control:
    """A reward, the right answer, and hostile answers; each is scored beside `others` in a group.

    With `ranks` every hostile answer must be worse than the right one. Without it, for networks with random weights,
    whose numbers mean nothing, hostile answers must be malformed or unscorable, and leave the right one's score alone.
    """

    build: Callable[[Place], Reward]
    right: RewardInput
    hostile: Sequence[RewardInput]
    others: Sequence[RewardInput] = ()
    ranks: bool = True
    context: RewardContext = field(default_factory=RewardContext)

    def rows(self, answer: RewardInput, group: int) -> list[RewardInput]:
        """Return an answer with the others of its group."""
        return [replace(each, id=f"{group}/{n}", group=group) for n, each in enumerate((answer, *self.others))]


def written(text: str, **references: Any) -> RewardInput:
    """Return an answer in words."""
    outcome = references.pop("outcome", {})
    return RewardInput("a", 0, "", text=text, references=references, outcome=outcome)


def drawn(image: Any, prompt: str = "", /, **references: Any) -> RewardInput:
    """Return an answer that is a picture."""
    return RewardInput("a", 0, prompt, image=image, references=references)


def filmed(video: Any, prompt: str = "", **references: Any) -> RewardInput:
    """Return an answer that is a video."""
    return RewardInput("a", 0, prompt, video=video, references=references)


STRIP = Image.new("RGB", (1, 999))
"""An image that no reward opens."""
