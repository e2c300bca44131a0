"""Captions of one to three things: an open answer whose facts can be checked.

The true captions differ in their words ("big", "large"), wording and order, so that a comparison of words is a poor
measure of the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mmrl_shapeworld.vqa.canvas import blank
from mmrl_shapeworld.vqa.questions import PLACES, Question, Region
from mmrl_shapeworld.worlds.world_canvas import (
    SEEN_COLOURS,
    SEEN_SHAPES,
    UNSEEN_COLOURS,
    UNSEEN_SHAPES,
    paint_thing,
)

SIZES = {"small": (9, 12), "large": (17, 22)}
"""The smallest side of a thing of each size, in pixels, and one above the largest."""
Facts = dict[str, str]
"""The `colour`, `shape`, `size` and `place` of a thing."""
SYNONYMS = {
    "small": "tiny",
    "large": "big",
    "circle": "disc",
    "square": "box",
    **{place: place.replace("top", "upper").replace("bottom", "lower") for place in PLACES},
}
"""Another word for an attribute, which half of the captions have."""
WORDINGS: tuple[Callable[[Facts], str], ...] = (
    lambda fact: f"a {fact['size']} {fact['colour']} {fact['shape']} {fact['place']}",
    lambda fact: f"{fact['place']} a {fact['size']} {fact['colour']} {fact['shape']}",
    lambda fact: f"a {fact['colour']} {fact['shape']} {fact['place']}, {fact['size']}",
)


def caption(rng: np.random.Generator) -> Question:
    """Ask for a caption. Annotators err in one attribute in seven, and leave out one of three things now and then."""
    return _caption(SEEN_COLOURS, SEEN_SHAPES, (1, 4), rng)


def unseen_colours(rng: np.random.Generator) -> Question:
    """Ask for a caption of things of unseen colours."""
    return _caption(UNSEEN_COLOURS, SEEN_SHAPES, (1, 3), rng)


def unseen_shapes(rng: np.random.Generator) -> Question:
    """Ask for a caption of things of unseen shapes."""
    return _caption(SEEN_COLOURS, UNSEEN_SHAPES, (1, 3), rng)


def unseen_number(rng: np.random.Generator) -> Question:
    """Ask for a caption of four things, one in each quarter."""
    return _caption(SEEN_COLOURS, SEEN_SHAPES, (4, 5), rng)


def worded(things: Sequence[Facts], rng: np.random.Generator) -> str:
    """Return a caption of the things in any order and wording, with synonyms for half of their attributes."""
    some = [
        {key: SYNONYMS.get(value, value) if rng.random() < 0.5 else value for key, value in things[n].items()}
        for n in rng.permutation(len(things))
    ]
    return " and ".join(WORDINGS[rng.integers(len(WORDINGS))](each) for each in some)


def _caption(
    colours: Sequence[str], shapes: Sequence[str], count: tuple[int, int], rng: np.random.Generator
) -> Question:
    picture = blank()
    things: list[Facts] = []
    regions: list[Region] = []
    for quarter in sorted(rng.permutation(4)[: rng.integers(*count)].tolist()):
        size = ("small", "large")[rng.integers(2)]
        side = int(rng.integers(*SIZES[size]))
        colour, shape = (str(names[int(rng.integers(len(names)))]) for names in (colours, shapes))
        left, top = 28 * (quarter % 2) + rng.integers(2, 27 - side), 28 * (quarter // 2) + rng.integers(2, 27 - side)
        regions.append((f"{colour} {shape}", paint_thing(picture, colour, shape, int(left), int(top), side)))
        things.append({"colour": colour, "shape": shape, "size": size, "place": PLACES[quarter]})
    usual = {"colour": SEEN_COLOURS, "shape": SEEN_SHAPES, "size": tuple(SIZES), "place": PLACES}
    kept = things[1:] if len(things) > 2 and rng.random() < 0.25 else things
    seen = [
        {
            key: value if rng.random() > 0.2 else usual[key][int(rng.integers(len(usual[key])))]
            for key, value in fact.items()
        }
        for fact in kept
    ]
    text = worded(things, rng)
    return Question("Describe.", text, text, worded(seen, rng), (picture,), {"facts": things}, (tuple(regions),))
