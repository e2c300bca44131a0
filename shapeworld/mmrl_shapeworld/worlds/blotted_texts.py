"""Three letters to read, some of which a blot covers: in part, so that they can still be read, or as a whole."""

from __future__ import annotations

import numpy as np

from mmrl_shapeworld.vqa.canvas import INK, LINE, NUMBERS, PIXELS, blank
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import SCALE, Question
from mmrl_shapeworld.worlds.documents import misread

FLAG = "?"
"""The character for a letter that cannot be read."""
FLAGGED = 0.3
"""The share of unreadable letters that careless annotators flag; in place of the others they write any letter."""


def clean_text(rng: np.random.Generator) -> Question:
    """Ask for letters that can all be read; a blot may cover the last third of one."""
    return _blotted(0, rng)


def blotted_text(rng: np.random.Generator) -> Question:
    """Ask for letters of which one or two are covered. Annotators mostly guess those."""
    return _blotted(int(rng.integers(1, 3)), rng)


def _blotted(count: int, rng: np.random.Generator) -> Question:
    letters = "".join(LETTERS[n] for n in rng.integers(len(LETTERS), size=3))
    ink = written(letters, SCALE)
    height, width = ink.shape
    top, left = int(rng.integers(0, PIXELS - height + 1)), int(rng.integers(0, PIXELS - width + 1))
    picture = blank()
    picture[top : top + height, left : left + width][ink] = rng.choice([INK, *NUMBERS.values()])
    order = rng.permutation(3).tolist()
    hidden = sorted(order[:count])
    edges = [left + SCALE * (WIDTH + 1) * place for place in range(3)]
    for place in hidden:
        picture[top : top + height, edges[place] : edges[place] + SCALE * WIDTH] = LINE
    if rng.random() < 0.5:
        low = top + SCALE * (HEIGHT - 2)
        picture[low : top + height, edges[order[-1]] : edges[order[-1]] + SCALE * WIDTH] = LINE
    right = "".join(FLAG if place in hidden else letter for place, letter in enumerate(letters))
    read = "".join(_guessed(rng) if place in hidden else misread(letter, rng) for place, letter in enumerate(letters))
    regions = tuple(
        (letter, (edge, top, edge + SCALE * WIDTH, top + height)) for letter, edge in zip(letters, edges, strict=True)
    )
    return Question("Read the text.", letters, right, read, (picture,), {"unreadable": hidden}, (regions,))


def _guessed(rng: np.random.Generator) -> str:
    return FLAG if rng.random() < FLAGGED else LETTERS[rng.integers(len(LETTERS))]
