"""Referring expressions among four or five things that share colours and shapes: one of them is to be located.

Its out-of-distribution forms have colours, shapes or an arrangement that the training split lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl_shapeworld.vqa.canvas import PIXELS, Picture, blank, scatter
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box, Question, box_answer
from mmrl_shapeworld.worlds.world_canvas import (
    SEEN_COLOURS,
    SEEN_SHAPES,
    UNSEEN_COLOURS,
    UNSEEN_SHAPES,
    loosened,
    paint_thing,
)

SIDES = (11, 16)
"""The smallest side of a thing in pixels, and one above the largest."""
APART = 8
"""Pixels by which the left one of two equal things lies further left."""
Kind = tuple[str, str]


def refer(rng: np.random.Generator) -> Question:
    """Ask for one of four or five things, or for the left, right, top or bottom one of two equal things.

    Annotated boxes are a pixel too large on each side, and one in ten is another thing's.
    """
    return _scattered(_kinds(rng, SEEN_COLOURS, SEEN_SHAPES), rng)


def unseen_colours(rng: np.random.Generator) -> Question:
    """Ask for a thing of an unseen colour, beside others of that and of the usual colours."""
    colours = (*UNSEEN_COLOURS, *rng.permutation(SEEN_COLOURS)[:2].tolist())
    return _scattered(_kinds(rng, colours, SEEN_SHAPES, first=UNSEEN_COLOURS), rng)


def unseen_shapes(rng: np.random.Generator) -> Question:
    """Ask for a thing of an unseen shape, beside others of that and of the usual shapes."""
    shapes = (*UNSEEN_SHAPES, *rng.permutation(SEEN_SHAPES)[:2].tolist())
    return _scattered(_kinds(rng, SEEN_COLOURS, shapes, second=UNSEEN_SHAPES), rng)


def unseen_layout(rng: np.random.Generator) -> Question:
    """Ask for one of five things that stand in a row or in a column, side by side."""
    kinds = _kinds(rng, SEEN_COLOURS, SEEN_SHAPES, count=5)
    sides = rng.integers(9, 12, 5).tolist()
    across, line = bool(rng.integers(2)), int(rng.integers(2, PIXELS - 14))
    ends = np.cumsum(sides)
    corners = [(int(end) - side, line + int(rng.integers(0, 3))) for end, side in zip(ends, sides, strict=True)]
    return _question(kinds, sides, corners if across else [(y, x) for x, y in corners], rng)


def _kinds(
    rng: np.random.Generator,
    colours: Sequence[str],
    shapes: Sequence[str],
    first: Sequence[str] = (),
    second: Sequence[str] = (),
    count: int | None = None,
) -> list[Kind]:
    """Return four or five kinds; the first, of a colour of `first` or a shape of `second`, occurs again in a third of
    the cases, and other things share its colour or its shape."""
    target = (_one(first or colours, rng), _one(second or shapes, rng))
    every = [(c, s) for c in colours for s in shapes if (c, s) != target]
    alike = [kind for kind in every if (kind[0] == target[0]) != (kind[1] == target[1])]
    count = count or int(rng.integers(4, 6))
    kinds = [target, *([target] if rng.random() < 0.34 else [])]
    kinds += [alike[n] for n in rng.permutation(len(alike))[:2]]
    return kinds + [every[rng.integers(len(every))] for _ in range(count - len(kinds))]


def _one(names: Sequence[str], rng: np.random.Generator) -> str:
    return str(names[int(rng.integers(len(names)))])


def _scattered(kinds: list[Kind], rng: np.random.Generator) -> Question:
    sides = rng.integers(*SIDES, len(kinds)).tolist()
    return _question(kinds, sides, scatter(sides, rng, gap=1), rng)


def _question(
    kinds: Sequence[Kind], sides: Sequence[int], corners: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Question:
    picture: Picture = blank()
    order = rng.permutation(len(kinds))  # the target is not always the first in a row
    boxes: list[Box] = [(0, 0, 0, 0)] * len(kinds)
    for place, number in enumerate(order):
        (left, top), (colour, shape) = corners[place], kinds[number]
        boxes[number] = paint_thing(picture, colour, shape, left, top, sides[place])
    target, side = _chosen(kinds, boxes, rng)
    drawn = boxes[target] if rng.random() < 0.9 else boxes[rng.integers(len(boxes))]
    colour, shape = kinds[target]
    return Question(
        f"Locate the {side}{colour} {shape}.",
        list(boxes[target]),
        box_answer(boxes[target]),
        box_answer(loosened(drawn, rng, 1.0, 1.0)),
        (picture,),
        IN_PIXELS,
        (tuple((f"{c} {s}", box) for (c, s), box in zip(kinds, boxes, strict=True)),),
    )


def _chosen(kinds: Sequence[Kind], boxes: Sequence[Box], rng: np.random.Generator) -> tuple[int, str]:
    """Return the target, and the word that tells it apart from an equal thing."""
    equal = [number for number, kind in enumerate(kinds) if kind == kinds[0]]
    if len(equal) == 1:
        return 0, ""
    sides = []
    for axis, (low, high) in enumerate((("left ", "right "), ("top ", "bottom "))):
        first, second = sorted(equal, key=lambda number: boxes[number][axis])
        if boxes[second][axis] - boxes[first][axis] >= APART:  # holds for one axis at least: things do not overlap
            sides += [(first, low), (second, high)]
    return sides[rng.integers(len(sides))]
