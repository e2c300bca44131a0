"""Small real environments and tools for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from mmrl.data.media.budget import ImageBudget, MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step, ToolArguments, ToolContext, TypedTool

READER = MediaReader(MediaBudget())


def small_reader(pixels: int) -> MediaReader:
    """Return a reader whose pictures have at most this many pixels."""
    return MediaReader(MediaBudget(ImageBudget(0, pixels)))


def page(folder, name="page.png", size=(400, 200)) -> Sample:
    """Return a sample with a picture of numbered colours: pixel (x, y) is (x mod 256, y mod 256, 7)."""
    width, height = size
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([x % 256, y % 256, np.full_like(x, 7)], -1).astype(np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return Sample("page", prompt="Read it.", images=(str(folder / name),))


class Countdown:
    """An environment that ends when a row has named the number in its prompt; the actions are numbers or commands."""

    name, max_turns, instructions = "countdown", 5, ""

    def __init__(self, deadline_s: float | None = None) -> None:
        self.deadline_s = deadline_s

    def begin(self, sample: Sample, reader: MediaReader) -> CountdownEpisode:
        """Begin."""
        return CountdownEpisode(int(sample.prompt))


@dataclass
class CountdownEpisode:
    """The actions of one row."""

    target: int
    actions: list[str | None] = field(default_factory=list)

    def step(self, action: str | None) -> Step:
        """Sleep, raise or count."""
        self.actions.append(action)
        if action is None:
            return Step(None)
        if action.startswith("sleep"):
            time.sleep(float(action.split()[1]))
        if action == "raise":
            raise RuntimeError("the world broke down")
        if action == "exit":
            raise SystemExit(3)
        if action == "nonsense":
            return "no step"  # type: ignore[return-value]
        right = action == str(self.target)
        return Step(None if right else Observation(f"not {action}"), {"closer": float(right)}, {"length": len(action)})

    def outcome(self) -> dict[str, Any]:
        """Return whether the number was named."""
        return {"success": str(self.target) in self.actions}


class SlowArguments(ToolArguments):
    """Seconds."""

    seconds: float


class Slow(TypedTool):
    """Wait."""

    name = "slow"
    Arguments = SlowArguments

    def __init__(self, concurrency: int | None = None) -> None:
        self.concurrency = concurrency
        self.running = self.most = 0

    def run(self, context: ToolContext, arguments: SlowArguments) -> Observation:
        """Wait and say so."""
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(arguments.seconds)
        self.running -= 1
        return Observation(f"waited {arguments.seconds:g}")


class FragileArguments(ToolArguments):
    """The way to fail."""

    how: str = "value"


class Fragile(TypedTool):
    """Fail."""

    name = "fragile"
    Arguments = FragileArguments

    def run(self, context: ToolContext, arguments: FragileArguments) -> Any:
        """Raise, or return something else than an observation."""
        if arguments.how == "exit":
            raise SystemExit(1)
        if arguments.how == "memory":
            raise MemoryError
        if arguments.how == "timeout":
            raise TimeoutError("its own")
        if arguments.how == "nothing":
            return None
        if arguments.how == "picture":
            return Observation(images=("/etc/passwd",))  # type: ignore[arg-type]
        if arguments.how == "text":
            return Observation(text=b"bytes")  # type: ignore[arg-type]
        raise ValueError("broken")
