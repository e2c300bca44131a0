"""Letters on coloured squares: the answer is the one on a named square, or all in reading order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl_shapeworld.vqa.canvas import INK, Picture, blank
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import Question, Region
from mmrl_shapeworld.worlds.documents import misread
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, UNSEEN_COLOURS, paint_thing

SIDE, SCALE = 24, 3
"""Pixels of a square's side, and to a dot of a letter."""


def lettered(rng: np.random.Generator) -> Question:
    """Ask for letters on two or three squares. Annotators take C for O, E for F and K for X."""
    return _lettered(SEEN_COLOURS, int(rng.integers(2, 4)), rng)


def unseen_colours(rng: np.random.Generator) -> Question:
    """Ask for letters on two squares of unseen colours."""
    return _lettered(UNSEEN_COLOURS, 2, rng)


def unseen_number(rng: np.random.Generator) -> Question:
    """Ask for letters on four squares."""
    return _lettered(SEEN_COLOURS, 4, rng)


def lettered_squares(
    colours: Sequence[str], letters: Sequence[str], rng: np.random.Generator
) -> tuple[Picture, tuple[Region, ...]]:
    """Return a picture of up to four squares with a letter each, in reading order, and where the letters stand."""
    picture, regions = blank(), []
    quarters = sorted(rng.permutation(4)[: len(colours)].tolist())
    for colour, letter, quarter in zip(colours, letters, quarters, strict=True):
        left, top = 28 * (quarter % 2) + int(rng.integers(0, 4)), 28 * (quarter // 2) + int(rng.integers(0, 4))
        paint_thing(picture, colour, "square", left, top, SIDE)
        x, y = left + (SIDE - SCALE * WIDTH) // 2, top + (SIDE - SCALE * HEIGHT) // 2
        dots = written(letter, SCALE)
        picture[y : y + len(dots), x : x + dots.shape[1]][dots] = INK
        regions.append((letter, (x, y, x + dots.shape[1], y + len(dots))))
    return picture, tuple(regions)


def _lettered(colours: Sequence[str], count: int, rng: np.random.Generator) -> Question:
    grounds = [str(colours[n]) for n in rng.permutation(len(colours))[:count]]
    letters = [LETTERS[n] for n in rng.integers(len(LETTERS), size=count)]
    picture, regions = lettered_squares(grounds, letters, rng)
    if rng.random() < 0.5:
        at = int(rng.integers(count))
        prompt, wanted = f"Read the text on the {grounds[at]} square.", [letters[at]]
    else:
        prompt, wanted = "Read the text.", letters
    read = "".join(misread(letter, rng) for letter in wanted)
    text = "".join(wanted)
    return Question(prompt, text, text, read, (picture,), regions=(regions,))
