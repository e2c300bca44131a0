"""Streams: clips that arrive one after another, in each of which one thing moves, and a question about one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mmrl.data.media.video import VideoFrames
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.vqa.canvas import FRAMES_PER_SECOND, PIXELS, Picture, blank, colours_of
from mmrl_shapeworld.vqa.questions import FRAMES, MOVES
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_SHAPES, UNSEEN_COLOURS, paint_thing

CLIPS = 3
"""Clips of a stream."""
LETTERS = dict(zip(MOVES, "ABCD", strict=True))
"""The letter of each way that a thing may move."""


@dataclass(frozen=True)
class Movement:
    """A thing that moves through a clip."""

    colour: str
    shape: str
    way: str
    left: int
    """The place of its square in the first frame, in pixels."""
    top: int
    side: int
    step: int
    """Pixels between two frames."""

    @property
    def name(self) -> str:
        """The name in prompts, such as `red circle`."""
        return f"{self.colour} {self.shape}"

    @property
    def note(self) -> str:
        """The movement in words."""
        return f"{self.name} {self.way}"


@dataclass(frozen=True)
class Stream:
    """Clips in their order, and the number of the one that the question is about."""

    movements: tuple[Movement, ...]
    target: int

    @property
    def question(self) -> str:
        """The question that comes last."""
        options = ", ".join(f"{letter} {way}" for way, letter in LETTERS.items())
        return f"Which way does the {self.movements[self.target].name} move? {options}."

    @property
    def answer(self) -> str:
        """The letter of the right answer."""
        return LETTERS[self.movements[self.target].way]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {"movements": [asdict(each) for each in self.movements], "target": self.target}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Stream:
        """Return the stream of `as_dict`.

        Raises:
            ValueError: the data are not those of a stream.
        """
        try:
            stream = cls(tuple(Movement(**each) for each in data["movements"]), data["target"])
            fits = all(
                each.colour in COLOUR_NUMBERS
                and each.shape in SEEN_SHAPES
                and each.way in MOVES
                and all(isinstance(n, int) for n in (each.left, each.top, each.side, each.step))
                and 1 <= each.side <= PIXELS
                and all(
                    place >= 0 and place + each.side <= PIXELS
                    for number in (0, FRAMES - 1)
                    for place in _place(each, number)
                )
                for each in stream.movements
            )
        except (KeyError, TypeError) as err:
            raise ValueError(f"no stream: {err}") from None
        if not fits or not isinstance(stream.target, int) or not 0 <= stream.target < len(stream.movements):
            raise ValueError(f"no stream: {data!r:.200}")
        return stream


def sample_stream(rng: np.random.Generator, unseen: bool = False) -> Stream:
    """Sample a stream of different things; `unseen`: the one in the question has an unseen colour."""
    target = int(rng.integers(CLIPS))
    movements = []
    for number, place in enumerate(rng.permutation(len(KINDS))[:CLIPS]):
        colour, shape = KINDS[place]
        if unseen and number == target:
            colour = UNSEEN_COLOURS[int(rng.integers(len(UNSEEN_COLOURS)))]
        way = list(MOVES)[int(rng.integers(len(MOVES)))]
        right, down = MOVES[way]
        side, step = int(rng.integers(11, 16)), int(rng.integers(5, 9))
        path = (FRAMES - 1) * step
        left = int(rng.integers(0, PIXELS - side - path * abs(right) + 1)) + path * (right < 0)
        top = int(rng.integers(0, PIXELS - side - path * abs(down) + 1)) + path * (down < 0)
        movements.append(Movement(colour, shape, way, left, top, side, step))
    return Stream(tuple(movements), target)


def frames_of(movement: Movement) -> tuple[Picture, ...]:
    """Return the frames of a clip."""
    frames = []
    for number in range(FRAMES):
        picture = blank()
        left, top = _place(movement, number)
        paint_thing(picture, movement.colour, movement.shape, left, top, movement.side)
        frames.append(picture)
    return tuple(frames)


def clip_of(movement: Movement) -> VideoFrames:
    """Return a clip as an observation holds it."""
    frames = np.stack([colours_of(frame) for frame in frames_of(movement)])
    return VideoFrames(
        frames=frames,
        timestamps=np.arange(FRAMES) / FRAMES_PER_SECOND,
        indices=tuple(range(FRAMES)),
        fps=float(FRAMES_PER_SECOND),
        source_fps=float(FRAMES_PER_SECOND),
        source_frames=FRAMES,
    )


def _place(movement: Movement, number: int) -> tuple[int, int]:
    right, down = MOVES[movement.way]
    return movement.left + number * movement.step * right, movement.top + number * movement.step * down
