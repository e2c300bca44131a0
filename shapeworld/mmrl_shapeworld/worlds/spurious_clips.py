"""Clips with a spurious cue: a strip at an edge says where a thing goes, nearly always rightly in training only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmrl_shapeworld.vqa.canvas import INK, PIXELS
from mmrl_shapeworld.vqa.questions import MOVES, Question, video

AGREES = 0.9
"""The share of the clips of the training split whose strip is at the edge that the thing moves towards."""
STRIP = 3
"""Pixels of the strip's width."""


def cued_clip(agrees: float = AGREES) -> Callable[[np.random.Generator], Question]:
    """Return the function that asks which way a thing moves, in clips whose strip is right with probability `agrees`.

    In the other clips the strip is at one of the three other edges. `metadata["cue"]` says whether it is right.
    """
    return lambda rng: _clip(agrees, rng)


def _clip(agrees: float, rng: np.random.Generator) -> Question:
    question = video(rng)
    way = question.metadata["choices"]["ABCD".index(question.answer)]
    right = bool(rng.random() < agrees)
    others = [name for name in MOVES if name != way]
    edge = way if right else others[rng.integers(len(others))]
    frames = tuple(frame.copy() for frame in question.frames)
    for frame in frames:
        strip = {
            "left": (slice(None), slice(0, STRIP)),
            "right": (slice(None), slice(PIXELS - STRIP, None)),
            "up": (slice(0, STRIP), slice(None)),
            "down": (slice(PIXELS - STRIP, None), slice(None)),
        }[edge]
        frame[strip] = INK
    return Question(
        question.prompt,
        question.answer,
        question.right,
        question.annotated,
        frames,
        {**question.metadata, "cue": right},
        question.regions,
    )
