"""Stacks of pages that a query searches: the wanted page, its distractors, and the sheet of what was found.

A page is identified by its header, a coloured shape such as `blue circle`, and has four coloured squares with a letter
in each (`zoom_pages`). Of the 16 pages of a stack one has the wanted header, five others have its colour, five its
shape, and five neither, so that a query of one of the two words finds the wanted page among others, or not at all. A
tall stack has 15 of each instead of five: 46 pages, of which such a query finds the wanted one in a quarter of cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from mmrl_shapeworld.captions import Kind
from mmrl_shapeworld.vqa.canvas import PIXELS, Picture, blank
from mmrl_shapeworld.vqa.questions import Box
from mmrl_shapeworld.worlds.world_canvas import (
    SEEN_COLOURS,
    SEEN_SHAPES,
    UNSEEN_COLOURS,
    UNSEEN_SHAPES,
    paint_thing,
)
from mmrl_shapeworld.worlds.zoom_pages import ZoomPage, sample_page

COLOURS, SHAPES = (*SEEN_COLOURS, *UNSEEN_COLOURS), (*SEEN_SHAPES, *UNSEEN_SHAPES)
SHARING = 5
"""Pages that share the colour of the wanted header, as many that share its shape, and as many that share neither."""
SHARING_TALL = 15
"""The same of a tall stack."""
SHEET = 4
"""Pages that a search finds."""
SMALLEST, LARGEST = 16, 22
"""The side of a header on the sheet in pixels, the largest excluded."""


@dataclass(frozen=True)
class PageStack:
    """Pages by header, the wanted one among them."""

    headers: tuple[Kind, ...]
    """The colour and the shape that identify each page; that of the wanted page occurs once."""
    wanted: int
    """The number of the wanted page."""
    colour: str
    """The colour of the wanted square on it."""
    seed: int
    """The seed of the squares and letters of all pages."""

    def __post_init__(self) -> None:
        known = all(colour in COLOURS and shape in SHAPES for colour, shape in self.headers)
        if not known or not 0 <= self.wanted < len(self.headers) or self.colour not in COLOURS or self.seed < 0:
            raise ValueError("expected headers of a colour and a shape, the wanted one's number, a colour and a seed")
        if self.headers.count(self.header) != 1:
            raise ValueError("the header of the wanted page must occur once")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PageStack:
        """Return the stack that `as_dict` wrote.

        Raises:
            ValueError: it is none.
        """
        try:
            headers = tuple((str(colour), str(shape)) for colour, shape in values["headers"])
            return cls(headers, int(values["wanted"]), str(values["colour"]), int(values["seed"]))
        except (KeyError, TypeError) as err:
            raise ValueError(f"no stack of pages: {err}") from None

    def as_dict(self) -> dict[str, Any]:
        """Return the stack as JSON values."""
        return {**asdict(self), "headers": [list(header) for header in self.headers]}

    @property
    def header(self) -> Kind:
        """The header of the wanted page."""
        return self.headers[self.wanted]

    @property
    def prompt(self) -> str:
        """The question."""
        return f"Read the text on the {self.colour} square on the {' '.join(self.header)} page."

    def page(self, number: int) -> ZoomPage:
        """Return a page; its first square is the one of the wanted colour."""
        return _page_of(self.seed, number, self.colour)

    def picture(self, number: int) -> Image.Image:
        """Return a page at its full size, in RGB."""
        return _picture_of(self.seed, number)

    def small_picture(self, number: int) -> Image.Image:
        """Return a page at 56×56 pixels, in RGB."""
        return _small_picture_of(self.seed, number)

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """Return the `SHEET` pages whose headers share the most words with a query, the best one first.

        Pages that share equally many are in the order of the stack, so a query finds the same pages again.
        """
        shared = [len({*header} & {*words}) for header in self.headers]
        return tuple(sorted(range(len(self.headers)), key=lambda number: -shared[number])[:SHEET])

    def sheet(self, found: Sequence[int]) -> tuple[Picture, tuple[Box, ...]]:
        """Return a picture [56, 56] of the headers of up to four pages, from the top left on, and their boxes."""
        rng = np.random.default_rng((self.seed, *found))
        picture, half, boxes = blank(), PIXELS // 2, []
        for place, number in enumerate(found):
            side = int(rng.integers(SMALLEST, LARGEST))
            left, top = (int(rng.integers(2, half - side - 1)) for _ in range(2))
            colour, shape = self.headers[number]
            boxes.append(
                paint_thing(picture, colour, shape, left + half * (place % 2), top + half * (place // 2), side)
            )
        return picture, tuple(boxes)


def sample_stack(
    rng: np.random.Generator,
    colours: Sequence[str] = SEEN_COLOURS,
    shapes: Sequence[str] = SEEN_SHAPES,
    sharing: int = SHARING,
) -> PageStack:
    """Sample a stack whose headers have some of the colours and shapes, in a random order."""
    colour, shape = str(rng.choice(colours)), str(rng.choice(shapes))
    others, forms = [each for each in colours if each != colour], [each for each in shapes if each != shape]
    headers = [(colour, shape)]
    headers += [(colour, str(rng.choice(forms))) for _ in range(sharing)]
    headers += [(str(rng.choice(others)), shape) for _ in range(sharing)]
    headers += [(str(rng.choice(others)), str(rng.choice(forms))) for _ in range(sharing)]
    order = rng.permutation(len(headers)).tolist()
    square, seed = str(rng.choice(SEEN_COLOURS)), int(rng.integers(2**31))
    return PageStack(tuple(headers[number] for number in order), order.index(0), square, seed)


@lru_cache(maxsize=256)
def _picture_of(seed: int, number: int) -> Image.Image:
    return _page_of(seed, number, SEEN_COLOURS[0]).picture()


@lru_cache(maxsize=2048)
def _small_picture_of(seed: int, number: int) -> Image.Image:
    return _picture_of(seed, number).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)


@lru_cache(maxsize=2048)
def _page_of(seed: int, number: int, colour: str) -> ZoomPage:
    """Return a page with squares of all seen colours, that of the given colour first."""
    page = sample_page(np.random.default_rng((seed, number)))
    at = page.colours.index(colour)
    order = (at, *(each for each in range(len(page.colours)) if each != at))
    return ZoomPage(
        tuple(page.colours[each] for each in order),
        tuple(page.letters[each] for each in order),
        tuple(page.boxes[each] for each in order),
    )
