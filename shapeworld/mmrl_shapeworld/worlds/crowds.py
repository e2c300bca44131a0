"""Crowded scenes for detection: five to nine small things that overlap, of which those of one colour or shape count.

Small boxes make tight thresholds of IoU hard, other things invite superfluous boxes, and hidden edges invite omissions.
The true box of a thing surrounds its visible pixels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from mmrl_shapeworld.vqa.canvas import PIXELS, blank
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box, Question
from mmrl_shapeworld.worlds.world_canvas import (
    SEEN_COLOURS,
    SEEN_SHAPES,
    UNSEEN_COLOURS,
    box_around,
    loosened,
    paint_thing,
    stencil,
)

FEWEST, MOST = 5, 9
"""Things in a scene."""
SIDES = (9, 14)
"""The smallest side of a thing in pixels, and one above the largest."""
VISIBLE = 0.55
"""The share of each thing that other things leave visible, at least."""
Kind = tuple[str, str]


def crowd(rng: np.random.Generator) -> Question:
    """Ask for the boxes of all things of one colour or shape. Annotators draw loosely, and forget or add boxes."""
    count = int(rng.integers(FEWEST, MOST + 1))
    return _question(_kinds(count, SEEN_COLOURS, rng), *_scattered(count, SIDES, rng), rng=rng)


def unseen_colours(rng: np.random.Generator) -> Question:
    """Ask the same where some of the things, and all targets, have an unseen colour."""
    count = int(rng.integers(FEWEST, MOST + 1))
    colours = (*UNSEEN_COLOURS, *rng.permutation(SEEN_COLOURS)[:2].tolist())
    kinds = _kinds(count, colours, rng)
    kinds[0] = (UNSEEN_COLOURS[rng.integers(len(UNSEEN_COLOURS))], kinds[0][1])
    return _question(kinds, *_scattered(count, SIDES, rng), rng=rng, among=UNSEEN_COLOURS)


def unseen_layout(rng: np.random.Generator) -> Question:
    """Ask the same where the things stand in close rows, as on a shelf."""
    rows, sides, corners = int(rng.integers(2, 4)), [], []
    for row in range(rows):
        columns = int(rng.integers(3, 5)) if rows == 2 else 3
        start, gap = int(rng.integers(1, 5)), int(rng.integers(0, 3))
        floor = (row + 1) * (PIXELS // rows) - int(rng.integers(1, 4))
        for side in rng.integers(*SIDES, columns).tolist():
            if start + side < PIXELS:
                corners.append((start, floor - side))
                sides.append(side)
                start += side + gap
    return _question(_kinds(len(sides), SEEN_COLOURS, rng), sides, corners, rng=rng)


def bare_boxes(boxes: Sequence[Box]) -> str:
    """Return boxes without labels as Qwen-VL writes them."""
    return json.dumps([{"bbox_2d": list(box)} for box in boxes])


def _kinds(count: int, colours: Sequence[str], rng: np.random.Generator) -> list[Kind]:
    """Return kinds of three colours and two or three shapes, so that several things share each."""
    some = [str(colours[n]) for n in rng.permutation(len(colours))[:3]]
    return [(some[rng.integers(len(some))], SEEN_SHAPES[rng.integers(len(SEEN_SHAPES))]) for _ in range(count)]


def _scattered(
    count: int, between: tuple[int, int], rng: np.random.Generator
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return sides and corners of things, of which later ones may hide a part of earlier ones."""
    while True:
        sides = rng.integers(*between, count).tolist()
        corners = [(int(x), int(y)) for x, y in (rng.integers(0, PIXELS - side + 1, 2) for side in sides)]
        owner = np.full((PIXELS, PIXELS), -1)
        for number, (side, (left, top)) in enumerate(zip(sides, corners, strict=True)):
            owner[top : top + side, left : left + side] = number
        visible = np.bincount(owner.ravel() + 1, minlength=count + 1)[1:].tolist()
        if all(pixels >= VISIBLE * side * side for pixels, side in zip(visible, sides, strict=True)):
            return sides, corners


def _question(
    kinds: Sequence[Kind],
    sides: Sequence[int],
    corners: Sequence[tuple[int, int]],
    *,
    rng: np.random.Generator,
    among: Sequence[str] = (),
) -> Question:
    """Draw the things in order and ask for those of one colour or shape; of a colour of `among`, if there is any."""
    picture, owner = blank(), np.full((PIXELS, PIXELS), -1)
    for number, ((colour, shape), side, (left, top)) in enumerate(zip(kinds, sides, corners, strict=True)):
        paint_thing(picture, colour, shape, left, top, side)
        owner[top : top + side, left : left + side][stencil(shape, side)] = number
    boxes = [box_around(owner == number) for number in range(len(kinds))]
    part = 0 if among else int(rng.integers(2))
    names = sorted({kind[part] for kind in kinds if not among or kind[part] in among})
    target = names[rng.integers(len(names))]
    found = sorted(box for box, kind in zip(boxes, kinds, strict=True) if kind[part] == target)
    others = [box for box, kind in zip(boxes, kinds, strict=True) if kind[part] != target]
    drawn = [loosened(box, rng, 0.6, 0.7) for box in found if len(found) == 1 or rng.random() > 0.12]
    if others and rng.random() < 0.25:
        drawn.append(loosened(others[rng.integers(len(others))], rng, 0.6, 0.7))
    prompt = f"Detect all {target} shapes." if part == 0 else f"Detect all {target}s."
    return Question(
        prompt,
        [{"box": list(box)} for box in found],
        bare_boxes(found),
        bare_boxes(sorted(drawn)),
        (picture,),
        IN_PIXELS,
        (tuple((f"{c} {s}", box) for (c, s), box in zip(kinds, boxes, strict=True)),),
    )
