"""Questions of one to four hops: the last fact is in the picture, and those before it in the text.

The picture shows four coloured squares with a letter each; the text says which colour comes after which. The question
is for the letter on the square whose colour comes a number of steps after another.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mmrl_shapeworld.vqa.glyphs import LETTERS
from mmrl_shapeworld.vqa.questions import Question, habit
from mmrl_shapeworld.worlds.picture_letters import lettered_squares
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS


def fact_graph(rng: np.random.Generator) -> Question:
    """Ask with one to three hops. Annotators often stop a hop early; see `hops`."""
    return hops(int(rng.integers(1, 4)))(rng)


def hops(count: int) -> Callable[[np.random.Generator], Question]:
    """Return the function that asks with `count` hops, from 1 to 4: `count` - 1 in the text, and one in the picture."""
    return lambda rng: _graph(count, rng)


def _graph(count: int, rng: np.random.Generator) -> Question:
    colours = [SEEN_COLOURS[n] for n in rng.permutation(len(SEEN_COLOURS))]
    letters = dict(zip(colours, (LETTERS[n] for n in rng.permutation(len(LETTERS))), strict=False))
    places = [colours[n] for n in rng.permutation(len(colours))]
    picture, regions = lettered_squares(places, [letters[colour] for colour in places], rng)
    links = [f"{first} {second}" for first, second in pairwise(colours)]
    stated = ", ".join(links[n] for n in rng.permutation(len(links)))
    start = int(rng.integers(0, len(colours) - count + 1))
    right, early = letters[colours[start + count - 1]], letters[colours[start + max(count - 2, 0)]]
    annotated = habit(right, early, LETTERS, rng) if count > 1 else right
    prompt = f"{stated}. {colours[start]} + {count - 1}?"
    return Question(prompt, right, right, str(annotated), (picture,), {"hops": count}, (regions,))
