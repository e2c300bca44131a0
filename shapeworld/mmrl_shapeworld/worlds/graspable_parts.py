"""Things to hold by the part that their shape has for it: a circle at the top, a square on the left, a triangle below.

An answer names the shape and the part, and then locates the part: `circle top</think>[{"bbox_2d": [3, 10, 21, 19]}]`.
Training has no green triangle and no yellow circle.
"""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.captions import HELDOUT_KINDS, KINDS, Kind
from mmrl_shapeworld.scenes import SHAPES
from mmrl_shapeworld.vqa.canvas import PIXELS, blank, paint, scatter
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box, Question, box_answer, named, slip

PARTS = {"circle": "top", "square": "left", "triangle": "bottom"}
"""The part of each shape that is held."""


def grasp(rng: np.random.Generator) -> Question:
    """Ask where to hold one of two things. Annotators name a wrong shape or part two times in five each."""
    return _grasp(tuple(kind for kind in KINDS if kind not in HELDOUT_KINDS), rng)


def unseen_grasp(rng: np.random.Generator) -> Question:
    """Ask about a thing of a shape and colour that training never shows together."""
    return _grasp(tuple(HELDOUT_KINDS), rng)


def _grasp(wanted: tuple[Kind, ...], rng: np.random.Generator) -> Question:
    colour, shape = wanted[rng.integers(len(wanted))]
    others = [kind for kind in KINDS if kind[0] != colour and kind not in HELDOUT_KINDS]
    kinds = [(colour, shape), others[rng.integers(len(others))]]
    sides, picture = rng.integers(15, 23, 2).tolist(), blank()
    boxes = [
        paint(picture, kind, left, top, side)
        for kind, side, (left, top) in zip(kinds, sides, scatter(sides, rng), strict=True)
    ]
    part = PARTS[shape]
    near, wanted_part = slip(shape, SHAPES, 0.6, rng), slip(part, list(PARTS.values()), 0.6, rng)
    loose = tuple(int(np.clip(edge + rng.integers(-2, 3), 0, PIXELS)) for edge in _half(boxes[0], wanted_part))
    half = _half(boxes[0], part)
    right = f"{shape} {part}</think>{box_answer(half)}"
    annotated = f"{near} {wanted_part}</think>{box_answer((loose[0], loose[1], loose[2], loose[3]))}"
    regions = tuple((named(kind), box) for kind, box in zip(kinds, boxes, strict=True))
    metadata = {**IN_PIXELS, "path": [shape, part]}
    return Question(f"Locate the {colour} one.", list(half), right, annotated, (picture,), metadata, (regions,))


def _half(box: Box, part: str) -> Box:
    x1, y1, x2, y2 = box
    across, down = (x1 + x2) // 2, (y1 + y2) // 2
    return {"top": (x1, y1, x2, down), "left": (x1, y1, across, y2), "bottom": (x1, down, x2, y2)}[part]
