"""Pairs of pictures of one caption, of which one fits it better: the world of judges.

A caption asks for a few equal things on one side of a picture (`3 small red circle left`), in five dimensions. Both
pictures of a pair may be wrong in one dimension, in the same way; the worse one is also wrong in another, by which the
pair is named. Numbers are wrong by one. A *stressed* caption ends with the dimension that counts most (`..., number
most`): there, the worse picture is wrong in this dimension, and the better one in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mmrl_shapeworld.captions import Kind
from mmrl_shapeworld.scenes import COLOURS, SHAPES
from mmrl_shapeworld.vqa.canvas import PIXELS, Picture, blank, paint
from mmrl_shapeworld.vqa.questions import Region, named

MOST = 4
"""The largest number of things."""
SIDES: Mapping[str, int] = {"small": 6, "large": 11}
"""Pixels of the side of a thing, by size."""
GAP = 2
"""The smallest distance of two things in pixels."""
SPECKS, SPECK = 6, 2
"""The number of specks in a specked picture, and their side in pixels."""
SHARED = 0.5
"""The share of pairs, not stressed, of which both pictures are wrong in a further dimension."""
VALUES: Mapping[str, tuple[str, ...]] = {
    "number": tuple(str(number) for number in range(1, MOST + 1)),
    "size": tuple(SIDES),
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "place": ("left", "right", "top", "bottom"),
}
"""The dimensions in the order of a caption, and the values of each."""
DIMENSIONS = tuple(VALUES)
Values = tuple[str, ...]
"""A value for each dimension, in the order of `DIMENSIONS`."""


@dataclass(frozen=True)
class PicturePair:
    """A caption, and what the better and the worse picture show; drawn with the seeds of their layouts."""

    caption: Values
    better: Values
    worse: Values
    dimension: str
    """The dimension in which the worse picture is wrong and the better one is not."""
    stressed: bool
    seeds: tuple[int, int]

    @property
    def prompt(self) -> str:
        """The caption as a text."""
        text = " ".join(self.caption)
        return f"{text}, {self.dimension} most" if self.stressed else text

    def pictures(self) -> tuple[Picture, Picture]:
        """Return the better and the worse picture [56, 56]."""
        return painted(self.better, self.seeds[0])[0], painted(self.worse, self.seeds[1])[0]

    def regions(self) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
        """Return the things of both pictures with their boxes."""
        return painted(self.better, self.seeds[0])[1], painted(self.worse, self.seeds[1])[1]


def painted(values: Values, seed: int) -> tuple[Picture, tuple[Region, ...]]:
    """Return a picture [56, 56] that shows the values, always the same for a seed, and its things with their boxes."""
    values_of = dict(zip(DIMENSIONS, values, strict=True))
    kind: Kind = (values_of["colour"], values_of["shape"])
    side, half = SIDES[values_of["size"]], PIXELS // 2
    left, top = (half if values_of["place"] == "right" else 0), (half if values_of["place"] == "bottom" else 0)
    wide = PIXELS if values_of["place"] in ("top", "bottom") else half
    high = PIXELS if values_of["place"] in ("left", "right") else half
    picture, regions = blank(), []
    for x, y in _corners(int(values_of["number"]), side, wide, high, np.random.default_rng(seed)):
        regions.append((named(kind), paint(picture, kind, left + x, top + y, side)))
    return picture, tuple(regions)


def specked(picture: Picture, seed: int) -> Picture:  # [56, 56]
    """Return a copy with small squares in the colours of things at any place, always the same for a seed.

    No caption asks for specks, so a judge must not count them.
    """
    rng, found = np.random.default_rng((seed, SPECKS)), picture.copy()
    for x, y in rng.integers(0, PIXELS - SPECK, (SPECKS, 2)).tolist():
        found[y : y + SPECK, x : x + SPECK] = rng.integers(1, len(COLOURS) + 1)
    return found


def _corners(count: int, side: int, wide: int, high: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return corners (x, y) of squares in a field, at least `GAP` pixels apart."""
    while True:
        placed: list[tuple[int, int]] = []
        for x, y in rng.integers(1, (wide - side, high - side), (30, 2)).tolist():
            if all(max(abs(x - a), abs(y - b)) >= side + GAP for a, b in placed):
                placed.append((x, y))
            if len(placed) == count:
                return placed


def changed(values: Values, dimension: str, rng: np.random.Generator) -> Values:
    """Return the values with another one in a dimension: a number that is off by one, else any other."""
    place, known = DIMENSIONS.index(dimension), VALUES[dimension]
    at = known.index(values[place])
    others = [n for n in range(len(known)) if (abs(n - at) == 1 if dimension == "number" else n != at)]
    return (*values[:place], known[int(rng.choice(others))], *values[place + 1 :])


def sample_pair(rng: np.random.Generator, dimension: str, stressed: bool = False) -> PicturePair:
    """Return a pair whose worse picture is wrong in a dimension, with a stressed caption or not."""
    caption = tuple(str(rng.choice(known)) for known in VALUES.values())
    other = str(rng.choice([each for each in DIMENSIONS if each != dimension]))
    if stressed:
        better, worse = changed(caption, other, rng), changed(caption, dimension, rng)
    else:
        better = changed(caption, other, rng) if rng.random() < SHARED else caption
        worse = changed(better, dimension, rng)
    first, second = rng.integers(2**31, size=2).tolist()
    return PicturePair(caption, better, worse, dimension, stressed, (first, second))


def sample_weighed_pair(rng: np.random.Generator, dimension: str) -> PicturePair:
    """Return a pair whose better picture is wrong in one dimension, and the worse one in two others.

    `dimension` is one of the two.
    """
    caption = tuple(str(rng.choice(known)) for known in VALUES.values())
    once, twice = (str(each) for each in rng.permutation([each for each in DIMENSIONS if each != dimension])[:2])
    better, worse = changed(caption, once, rng), changed(changed(caption, dimension, rng), twice, rng)
    first, second = rng.integers(2**31, size=2).tolist()
    return PicturePair(caption, better, worse, dimension, False, (first, second))


def swapped(pair: PicturePair) -> PicturePair:
    """Return the pair with the two pictures exchanged, which is no pair of a better and a worse one any more."""
    return replace(pair, better=pair.worse, worse=pair.better, seeds=(pair.seeds[1], pair.seeds[0]))
