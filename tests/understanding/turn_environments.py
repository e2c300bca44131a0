"""Environments for tests of several turns: they show a text, a picture or a clip after each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation, Step
from tests.understanding.media import RATE, frames, picture

Kind = Literal["text", "picture", "clip"]


def clip(seed: int, count: int = 4) -> VideoFrames:
    """Return a clip of noise."""
    return VideoFrames(
        frames=frames(seed, count),
        timestamps=np.arange(count) / RATE,
        indices=tuple(range(count)),
        fps=RATE,
        source_fps=RATE,
        source_frames=count,
    )


@dataclass
class SceneEpisode:
    """An episode that shows something else after each action, and ends after `turns` of them."""

    kinds: Sequence[Kind]
    actions: list[str | None] = field(default_factory=list)

    def step(self, action: str | None) -> Step:
        self.actions.append(action)
        turn = len(self.actions) - 1
        seed = 50 + turn + 10 * len(action or "")
        info = {"length": float(len(action or ""))}
        if action is None or turn >= len(self.kinds):
            return Step(None, {"ended": 1.0}, info)
        kind = self.kinds[turn]
        view = Observation(
            f"Here is {turn}.",
            (picture(seed, 40, 32),) if kind == "picture" else (),
            (clip(seed),) if kind == "clip" else (),
        )
        return Step(view, {"seen": 0.5}, info)

    def outcome(self) -> Mapping[str, Any]:
        return {"void": None, "actions": list(self.actions)}


@dataclass
class Shows:
    """Shows what `kinds` name, one after another."""

    kinds: Sequence[Kind]
    instructions: str = ""
    deadline_s: float | None = None

    @property
    def max_turns(self) -> int:
        return len(self.kinds) + 1

    def begin(self, sample: Sample, reader: MediaReader) -> SceneEpisode:
        return SceneEpisode(self.kinds)


@dataclass
class Breaks(Shows):
    """An environment that raises at the second action of every episode whose first action is of even length."""

    def begin(self, sample: Sample, reader: MediaReader) -> SceneEpisode:
        return _BreakingEpisode(self.kinds)


class _BreakingEpisode(SceneEpisode):
    def step(self, action: str | None) -> Step:
        if len(self.actions) == 1 and len(self.actions[0] or "") % 2 == 0:
            raise OSError("the screen is gone")
        return super().step(action)
