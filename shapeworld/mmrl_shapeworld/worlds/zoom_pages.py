"""Pages whose letters a small model reads from an enlarged part, and hardly from the page at the size that it sees.

A page of 224×224 pixels has four squares, each a frame of one colour around a letter of that colour. A policy whose
pixel budget is 56×56 (`media.image.max_pixels=3136`) sees the frames, but a letter is then 1.25 by 1.75 pixels large.
With `scale=LARGE` it is 7.5 by 10.5 pixels large, and legible at once. As the pages have no noise, a reader that is
large enough could tell the small ones as well: see docs/shapeworld.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl_shapeworld.vqa.canvas import PALETTE, PIXELS, page_uri
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import Box
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_COLOURS

PAGE = 4 * PIXELS
"""Width and height of a page in pixels."""
FRAME = 8
"""Width of a frame in pixels."""
SMALLEST, LARGEST = 56, 88
"""The side of a square in pixels, the largest excluded."""
LARGE = 6
"""Pixels to a dot of a large letter."""
SMALLEST_OF_LARGE = 72
"""The side of the smallest square around a large letter in pixels."""


@dataclass(frozen=True)
class ZoomPage:
    """Squares in the quarters of a page, of which the first is wanted."""

    colours: tuple[str, ...]
    letters: tuple[str, ...]
    boxes: tuple[Box, ...]
    """x1, y1, x2, y2 of each square in pixels of the page."""
    scale: int = field(default=1, repr=False)
    """Pixels to a dot of the letters: 1, or `LARGE`."""

    @property
    def prompt(self) -> str:
        """The question about the first square."""
        return f"Read the text on the {self.colours[0]} square."

    @property
    def letter_boxes(self) -> tuple[Box, ...]:
        """The boxes around the letters, in pixels of the page."""
        return tuple(_middle_of(box, self.scale) for box in self.boxes)

    def picture(self) -> Image.Image:
        """Return the page in RGB."""
        return Image.fromarray(PALETTE[self._numbers()])

    def uri(self) -> str:
        """Return the page as a PNG in a data URI."""
        return page_uri(self._numbers())

    def _numbers(self) -> NDArray[np.uint8]:
        page = np.zeros((PAGE, PAGE), np.uint8)
        squares = zip(self.colours, self.letters, self.boxes, self.letter_boxes, strict=True)
        for colour, letter, (x1, y1, x2, y2), (left, top, right, bottom) in squares:
            page[y1:y2, x1:x2] = COLOUR_NUMBERS[colour]
            page[y1 + FRAME : y2 - FRAME, x1 + FRAME : x2 - FRAME] = 0
            page[top:bottom, left:right][written(letter, self.scale)] = COLOUR_NUMBERS[colour]
        return page


def sample_page(rng: np.random.Generator, colours: tuple[str, ...] = SEEN_COLOURS, scale: int = 1) -> ZoomPage:
    """Sample a page with squares of up to four colours, in random quarters, and `scale` pixels to a letter's dot."""
    chosen = [colours[n] for n in rng.permutation(len(colours))[:4]]
    boxes: list[Box] = []
    for quarter in rng.permutation(4)[: len(chosen)].tolist():
        side = int(rng.integers(SMALLEST if scale == 1 else SMALLEST_OF_LARGE, LARGEST))
        left, top = (int(rng.integers(8, PAGE // 2 - side - 8)) for _ in range(2))
        left, top = left + PAGE // 2 * (quarter % 2), top + PAGE // 2 * (quarter // 2)
        boxes.append((left, top, left + side, top + side))
    letters = tuple(LETTERS[n] for n in rng.integers(len(LETTERS), size=len(chosen)))
    return ZoomPage(tuple(chosen), letters, tuple(boxes), scale)


def _middle_of(box: Box, scale: int) -> Box:
    """Return the place of a letter in the middle of a square."""
    x1, y1, x2, y2 = box
    width, height = scale * WIDTH, scale * HEIGHT
    left, top = (x1 + x2 - width) // 2, (y1 + y2 - height) // 2
    return left, top, left + width, top + height
