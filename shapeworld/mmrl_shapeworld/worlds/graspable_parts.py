"""Things to hold by the part that their shape has for it: a circle at the top, a square on the left, a triangle below.

An answer names the shape and the part, and then locates the part: `circle top[{"bbox_2d": [3, 10, 21, 19]}]`. A
picture has one thing, which the question does not name, so that its shape has to be seen. Training has no green
triangle and no yellow circle.
"""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.captions import HELDOUT_KINDS, SEEN_KINDS, Kind
from mmrl_shapeworld.scenes import SHAPES
from mmrl_shapeworld.vqa.canvas import PIXELS, blank, paint
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box, Question, box_answer, named, slip

PARTS = {"circle": "top", "square": "left", "triangle": "bottom"}
"""The part of each shape that is held."""
SIDES = (17, 27)
"""The smallest side of a thing in pixels, and one above the largest."""
NAMED = 0.75
"""The share of shapes, and of the parts after them, that careless annotators name rightly."""


def grasp(rng: np.random.Generator) -> Question:
    """Ask where to hold a thing. Annotators name a wrong shape or part one time in four each."""
    return _grasp(SEEN_KINDS, rng)


def unseen_grasp(rng: np.random.Generator) -> Question:
    """Ask about a thing of a shape and colour that training never shows together."""
    return _grasp(tuple(HELDOUT_KINDS), rng)


def _grasp(wanted: tuple[Kind, ...], rng: np.random.Generator) -> Question:
    colour, shape = wanted[rng.integers(len(wanted))]
    side, picture = int(rng.integers(*SIDES)), blank()
    left, top = rng.integers(1, PIXELS - side, 2).tolist()
    box = paint(picture, (colour, shape), left, top, side)
    part = PARTS[shape]
    near, wanted_part = slip(shape, SHAPES, NAMED, rng), slip(part, list(PARTS.values()), NAMED, rng)
    loose = tuple(int(np.clip(edge + rng.integers(-1, 2), 0, PIXELS)) for edge in _part_box(box, wanted_part))
    of_part = _part_box(box, part)
    right = f"{shape} {part}{box_answer(of_part)}"
    annotated = f"{near} {wanted_part}{box_answer((loose[0], loose[1], loose[2], loose[3]))}"
    metadata = {**IN_PIXELS, "path": [shape, part]}
    region = (named((colour, shape)), box)
    return Question("Locate the one.", list(of_part), right, annotated, (picture,), metadata, ((region,),))


def _part_box(box: Box, part: str) -> Box:
    """Return a box of half the width and half the height, in the middle of the side of `box` that is held."""
    x1, y1, x2, y2 = box
    across, down = (x2 - x1 + 1) // 2, (y2 - y1 + 1) // 2
    left, top = (x1 + x2 - across) // 2, (y1 + y2 - down) // 2
    left, top = {"top": (left, y1), "left": (x1, top), "bottom": (left, y2 - down)}[part]
    return left, top, left + across, top + down
