"""Shapes that move ("a red circle moves left"): their clips, and a rule checker for clips.

One or two things, each moving straight across a clip of five frames. Nothing else may be seen, and a thing must stay
the same from frame to frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from mmrl_shapeworld.captions import KINDS, Kind
from mmrl_shapeworld.checker import DIRT, Reading, Seen, read
from mmrl_shapeworld.scenes import Scene, Thing, draw, place

PIXELS, FRAMES = 32, 5
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Each with its step; y grows downwards."""
FAR = 0.15
"""Least distance, in shares of the side, from the first to the last place of a thing that moves."""
STRAY = 0.5
"""Most of that distance that it may move sideways."""
STEADY = 0.1
"""Most that the side of a thing may change from frame to frame: three pixels."""


@dataclass(frozen=True)
class Move:
    """A thing and its direction."""

    colour: str
    shape: str
    direction: str

    def __str__(self) -> str:
        return f"a {self.colour} {self.shape} moves {self.direction}"


@dataclass(frozen=True)
class Motion:
    """A motion of one or two things of different kinds, and nothing else."""

    moves: tuple[Move, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.moves))

    @property
    def form(self) -> str:
        """one or two."""
        return "one" if len(self.moves) == 1 else "two"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {"moves": [vars(move) for move in self.moves]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Motion:
        """Return the motion of `as_dict`."""
        return cls(tuple(Move(**move) for move in data["moves"]))


@dataclass(frozen=True)
class ClipVerdict:
    """The agreement of a clip with a motion."""

    score: float  # [0, 1]: the mean over things of what was seen, of movement and of steadiness, lowered by dirt
    strict: bool  # every frame contains exactly the things of the motion, and each moves in its direction


def sample_motion(rng: np.random.Generator, kinds: tuple[Kind, ...] = KINDS) -> Motion:
    """Sample a motion of one thing, or of two of different kinds."""
    count = 1 + int(rng.random() < 0.5)
    chosen = [kinds[number] for number in rng.permutation(len(kinds))[:count]]
    return Motion(tuple(Move(colour, shape, str(rng.choice(list(DIRECTIONS)))) for colour, shape in chosen))


def sample_clip(motion: Motion, rng: np.random.Generator, frames: int = FRAMES) -> list[Scene]:
    """Scenes, one a frame, that show a motion: speeds are even, and things never touch."""
    low, high = (0.28, 0.42) if len(motion.moves) == 1 else (0.24, 0.34)
    while True:
        first = place([(m.colour, m.shape, float(rng.uniform(low, high))) for m in motion.moves], rng)
        if first is None:
            continue
        spans = rng.uniform(0.25, 0.42, len(motion.moves))
        scenes = [
            Scene(
                tuple(
                    _moved(thing, move.direction, float(span) * number / (frames - 1))
                    for thing, move, span in zip(first.things, motion.moves, spans, strict=True)
                )
            )
            for number in range(frames)
        ]
        if all(_fits(scene) for scene in scenes):
            return scenes


def draw_clip(scenes: Sequence[Scene], pixels: int = PIXELS) -> list[Image.Image]:
    """Return the frames."""
    return [draw(scene, pixels) for scene in scenes]


def judge_clip(frames: Sequence[Image.Image], motion: Motion) -> ClipVerdict:
    """Judge a clip by reading each of its frames.

    A thing earns a quarter for the share of frames that show its colour once, a quarter for those that show its very
    kind once, and half for its movement: the share of steps that go the right way, if it went far enough and straight,
    times the share of frames that keep its size. The mean over things is lowered by dirt and by things that the prompt
    does not name.
    """
    readings = [read(frame) for frame in frames]
    credits, exact = [], all(len(reading.things) == len(motion.moves) for reading in readings)
    for move in motion.moves:
        alike = sum(other.colour == move.colour for other in motion.moves)
        coloured = [sum(t.colour == move.colour for t in reading.things) == alike for reading in readings]
        track = [_only(reading, move) for reading in readings]
        moving = _movement(track, move.direction)
        kinds = float(np.mean([thing is not None for thing in track]))
        credits.append(0.25 * float(np.mean(coloured)) + 0.25 * kinds + 0.5 * moving)
        exact = exact and kinds == 1.0 and moving == 1.0
    dirt = float(np.mean([reading.dirt for reading in readings]))
    extra = float(np.mean([max(0, len(reading.things) - len(motion.moves)) for reading in readings]))
    score = float(np.mean(credits)) * max(0.0, 1 - 2 * dirt) / (1 + 0.5 * extra)
    return ClipVerdict(score, bool(exact) and max(reading.dirt for reading in readings) <= DIRT)


def _only(reading: Reading, move: Move) -> Seen | None:
    """The one thing of a kind in a frame; None where there is none, or more."""
    found = [thing for thing in reading.things if (thing.colour, thing.shape) == (move.colour, move.shape)]
    return found[0] if len(found) == 1 else None


def _movement(track: Sequence[Seen | None], direction: str) -> float:
    """Return how well a thing's places follow its direction, in [0, 1]."""
    if len(track) < 2 or track[0] is None or track[-1] is None:
        return 0.0
    dx, dy = DIRECTIONS[direction]
    first, last = track[0], track[-1]
    far = (last.x - first.x) * dx + (last.y - first.y) * dy
    aside = (last.x - first.x) * dy + (last.y - first.y) * dx
    if far < FAR or abs(aside) > STRAY * far:
        return 0.0
    steps = [a is not None and b is not None and (b.x - a.x) * dx + (b.y - a.y) * dy > 0 for a, b in pairwise(track)]
    usual = float(np.median([thing.side for thing in track if thing is not None]))
    steady = [thing is not None and abs(thing.side - usual) <= STEADY for thing in track]
    return float(np.mean(steps)) * float(np.mean(steady))


def _moved(thing: Thing, direction: str, by: float) -> Thing:
    dx, dy = DIRECTIONS[direction]
    return replace(thing, x=thing.x + dx * by, y=thing.y + dy * by)


def _fits(scene: Scene, edge: float = 0.03, gap: float = 0.06) -> bool:
    inside = all(min(thing.box) >= edge and max(thing.box) <= 1 - edge for thing in scene.things)
    return inside and not any(
        max(abs(a.x - b.x), abs(a.y - b.y)) < (a.side + b.side) / 2 + gap
        for number, a in enumerate(scene.things)
        for b in scene.things[:number]
    )
