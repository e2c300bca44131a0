"""Clips of a road from above, with one thing ahead: mostly it stands, and rarely it nears or crosses.

A plan has a meta-action for the speed and one for the path: `on way` where nothing happens, `down way` before a thing
that nears, and `on left` or `on right` behind one that crosses from there. The thing trembles by a pixel, and moves
by little more, so that a plan is often a decision under doubt.
"""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.vqa.canvas import LINE, PIXELS, blank, paint
from mmrl_shapeworld.vqa.questions import FRAMES, Question, Region, named

EVENTS = {"keep": "on way", "brake": "down way", "left": "on left", "right": "on right"}
"""The right plan by event."""
SHARES = (0.7, 0.1, 0.1, 0.1)
"""The probability of each event."""
MOTIONS = {"keep": (0, 0), "brake": (0, 1), "left": (1, 0), "right": (-1, 0)}
"""The direction of the thing: what crosses from the left leaves the left free behind it."""
STEPS = (2, 5)
"""Pixels a frame of a thing that moves: from the first number, below the second."""
OVERLOOKED = 0.4
"""The share of rare events that careless annotators do not see."""
_EDGES, _DASH = (8, 47), 7


def drive(rng: np.random.Generator) -> Question:
    """Ask for the plan of a clip. Annotators overlook two in five of the events."""
    return _drive(list(EVENTS)[int(rng.choice(len(EVENTS), p=SHARES))], rng)


def eventful_drive(rng: np.random.Generator) -> Question:
    """Ask for the plan of a clip in which a thing nears or crosses as often as it stands."""
    return _drive(list(EVENTS)[int(rng.integers(len(EVENTS)))], rng)


def _drive(event: str, rng: np.random.Generator) -> Question:
    kind, side, step = KINDS[rng.integers(len(KINDS))], int(rng.integers(10, 15)), int(rng.integers(*STEPS))
    dx, dy = (step * each for each in MOTIONS[event])
    way = 3 * step + 2
    left, top = int(rng.integers(10, 46 - side)), int(rng.integers(3, PIXELS - side - way - 2))
    if dx:
        left = int(rng.integers(10, 46 - side - way)) + (way if dx < 0 else 0)
    frames, regions = [], []
    start = int(rng.integers(0, 2 * _DASH))
    for number in range(FRAMES):
        frame = blank()
        frame[:, _EDGES] = LINE
        for dash in range(start - 4 * number - 4 * _DASH, PIXELS, 2 * _DASH):
            frame[max(dash, 0) : max(dash + _DASH, 0), 27:29] = LINE
        trembling = rng.integers(-1, 2, 2)
        x, y = left + number * dx + int(trembling[0]), top + number * dy + int(trembling[1])
        region: Region = (named(kind), paint(frame, kind, x, y, side))
        frames.append(frame)
        regions.append((region,))
    seen = "keep" if rng.random() < OVERLOOKED else event
    speed, path = EVENTS[event].split()
    answer, metadata = {"speed": speed, "path": path}, {"event": event}
    return Question(
        f"Which way does the {named(kind)} move?",
        answer,
        EVENTS[event],
        EVENTS[seen],
        tuple(frames),
        metadata,
        tuple(regions),
    )
