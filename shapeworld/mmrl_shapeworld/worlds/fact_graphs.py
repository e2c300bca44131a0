"""Questions of one to four hops: the last fact is in the picture, and those before it in the text.

The picture shows four letters, each in another colour; the text says which letter comes after which. The question is
for the colour of the letter that comes a number of steps after another.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mmrl_shapeworld.vqa.canvas import blank
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import Question, habit
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_COLOURS

LETTER_COUNT = 4
SCALE = 3
"""Pixels to a dot of a letter."""


def fact_graph(rng: np.random.Generator) -> Question:
    """Ask with one to three hops. Annotators often stop a hop early; see `hops`."""
    return hops(int(rng.integers(1, 4)))(rng)


def hops(count: int) -> Callable[[np.random.Generator], Question]:
    """Return the function that asks with `count` hops, from 1 to 4: `count` - 1 in the text, and one in the picture."""
    return lambda rng: _graph(count, rng)


def _graph(count: int, rng: np.random.Generator) -> Question:
    letters = [LETTERS[n] for n in rng.permutation(len(LETTERS))[:LETTER_COUNT]]
    colours = [SEEN_COLOURS[n] for n in rng.permutation(LETTER_COUNT)]
    picture, regions = blank(), []
    for place, number in enumerate(rng.permutation(LETTER_COUNT).tolist()):
        left = 28 * (place % 2) + int(rng.integers(1, 27 - SCALE * WIDTH))
        top = 28 * (place // 2) + int(rng.integers(1, 27 - SCALE * HEIGHT))
        dots = written(letters[number], SCALE)
        picture[top : top + len(dots), left : left + dots.shape[1]][dots] = COLOUR_NUMBERS[colours[number]]
        regions.append((f"{colours[number]} {letters[number]}", (left, top, left + dots.shape[1], top + len(dots))))
    links = [f"{first} {second}" for first, second in pairwise(letters)]
    stated = ", ".join(links[n] for n in rng.permutation(len(links)))
    start = int(rng.integers(0, LETTER_COUNT - count + 1))
    right, early = colours[start + count - 1], colours[start + max(count - 2, 0)]
    annotated = habit(right, early, SEEN_COLOURS, rng) if count > 1 else right
    prompt = f"{stated}. {letters[start]} + {count - 1}?"
    return Question(prompt, right, right, str(annotated), (picture,), {"hops": count}, (tuple(regions),))
