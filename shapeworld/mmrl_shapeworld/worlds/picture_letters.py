"""Letters on coloured things: the answer is the one on a named thing, or all in reading order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl_shapeworld.vqa.canvas import INK, blank
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import Question
from mmrl_shapeworld.worlds.documents import misread
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, UNSEEN_COLOURS, paint_thing

SHAPES = ("circle", "square")
"""Shapes that have room for a letter."""
SIDE, SCALE = 22, 2
"""Pixels of a thing's side, and to a dot of a letter."""


def lettered(rng: np.random.Generator) -> Question:
    """Ask for letters on two or three things. Annotators take C for O, E for F and K for X."""
    return _lettered(SEEN_COLOURS, int(rng.integers(2, 4)), rng)


def unseen_colours(rng: np.random.Generator) -> Question:
    """Ask for letters on things of unseen colours."""
    return _lettered(UNSEEN_COLOURS, int(rng.integers(2, 4)), rng)


def unseen_number(rng: np.random.Generator) -> Question:
    """Ask for letters on four things."""
    return _lettered(SEEN_COLOURS, 4, rng)


def _lettered(colours: Sequence[str], count: int, rng: np.random.Generator) -> Question:
    every = [(str(colour), shape) for colour in colours for shape in SHAPES]
    kinds = [every[n] for n in rng.permutation(len(every))[:count]]
    letters = [LETTERS[n] for n in rng.integers(len(LETTERS), size=count)]
    picture, regions = blank(), []
    quarters = sorted(rng.permutation(4)[:count].tolist())
    for (colour, shape), letter, quarter in zip(kinds, letters, quarters, strict=True):
        left, top = 28 * (quarter % 2) + int(rng.integers(1, 6)), 28 * (quarter // 2) + int(rng.integers(1, 6))
        paint_thing(picture, colour, shape, left, top, SIDE)
        x, y = left + (SIDE - SCALE * WIDTH) // 2, top + (SIDE - SCALE * HEIGHT) // 2
        dots = written(letter, SCALE)
        picture[y : y + len(dots), x : x + dots.shape[1]][dots] = INK
        regions.append((letter, (x, y, x + dots.shape[1], y + len(dots))))
    if rng.random() < 0.5:
        at = int(rng.integers(count))
        prompt, wanted = f"Read the text on the {kinds[at][0]} {kinds[at][1]}.", [letters[at]]
    else:
        prompt, wanted = "Read the text.", letters
    read = "".join(misread(letter, rng) for letter in wanted)
    text = "".join(wanted)
    return Question(prompt, text, text, read, (picture,), regions=(tuple(regions),))
