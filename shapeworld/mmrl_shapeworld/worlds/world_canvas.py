"""Things of usual and of unseen colours and shapes, drawn into pictures of 56×56 pixels."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mmrl_shapeworld.scenes import COLOURS, SHAPES
from mmrl_shapeworld.vqa import canvas
from mmrl_shapeworld.vqa.canvas import LINE, MORE_COLOURS, NUMBERS, PIXELS, Picture
from mmrl_shapeworld.vqa.questions import Box

UNSEEN_COLOURS = tuple(MORE_COLOURS)
UNSEEN_SHAPES = ("diamond", "cross")
"""Shapes of things in out-of-distribution splits alone."""
SEEN_COLOURS = tuple(COLOURS)
SEEN_SHAPES = SHAPES
COLOUR_NUMBERS = {**NUMBERS, **{name: LINE + 1 + number for number, name in enumerate(MORE_COLOURS)}}
"""The colour numbers of all things."""


@cache
def stencil(shape: str, side: int) -> NDArray[np.bool_]:
    """Return [side, side]; the pixels that a thing covers of its square."""
    if shape in SHAPES:
        return canvas.stencil(shape, side)
    centres = np.abs((np.arange(side) + 0.5) / side - 0.5)
    u, v = centres[None, :], centres[:, None]
    if shape == "diamond":
        return np.asarray(u + v <= 0.5)
    if shape == "cross":
        return np.asarray((u <= 1 / 6) | (v <= 1 / 6))
    raise ValueError(f"unknown shape {shape!r}: expected one of {', '.join(SEEN_SHAPES + UNSEEN_SHAPES)}")


def paint_thing(picture: Picture, colour: str, shape: str, left: int, top: int, side: int) -> Box:
    """Draw a thing in the square at (left, top).

    Returns the box (x1, y1, x2, y2) around its pixels, x2 and y2 exclusive.
    """
    picture[top : top + side, left : left + side][stencil(shape, side)] = COLOUR_NUMBERS[colour]
    x1, y1, x2, y2 = _box_in_square(shape, side)
    return left + x1, top + y1, left + x2, top + y2


def box_around(mask: NDArray[np.bool_]) -> Box:
    """Return the box (x1, y1, x2, y2) around the pixels of a mask [height, width], x2 and y2 exclusive."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


@cache
def _box_in_square(shape: str, side: int) -> Box:
    return box_around(stencil(shape, side))


def loosened(box: Box, rng: np.random.Generator, out: float, spread: float) -> Box:
    """Return a box drawn carelessly: each side lies `out` pixels further out, give or take `spread`."""
    off = np.rint(rng.normal(out, spread, 4)).astype(int).tolist()
    x1, y1, x2, y2 = box
    return (
        min(max(0, x1 - off[0]), x2 - 2),
        min(max(0, y1 - off[1]), y2 - 2),
        max(min(PIXELS, x2 + off[2]), x1 + 2),
        max(min(PIXELS, y2 + off[3]), y1 + 2),
    )
