"""Pages with badges, of which a search for look-alikes tells the letters: the world of `badge_search`.

A badge is a coloured frame around a pattern of dots. Three pages of four are crowded: 224×224 pixels with four badges
of different colours, of which the prompt names one (`Read the text on the red square.`). On the others one badge fills
the page. No page shows a letter: the letters of all `BADGES` are in an index, and are drawn anew for each page, so that
they cannot be learnt by heart.

Splits are `badges-train`, `-development` and `-validation`; sources are `badges-crowded` and `badges-single`. The
demonstrations of training are the boxes of an annotator who draws them too large, one in five around another badge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.canvas import PALETTE, PIXELS, page_uri
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import Box, box_answer, slip
from mmrl_shapeworld.worlds.disjoint_draws import checksum_of, draw_disjoint
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, SEEN_COLOURS, loosened
from mmrl_shapeworld.worlds.zoom_pages import FRAME, LARGEST, PAGE, SMALLEST

SIZES = {"train": 1200, "development": 256, "validation": 512}
"""Pages of each split. Settings are chosen on `development`; `validation` is for results."""
NAMES = tuple(f"badges-{part}" for part in SIZES)
PATTERNS = 12
"""Patterns of dots; each occurs in every colour."""
CELLS = 5
"""Dots across and down a pattern, which is symmetric from left to right."""
SINGLE = 4
"""The number of pages of which one shows a single badge."""
SINGLE_SIDES = (176, 208)
"""The smallest side of a single badge in pixels, and one above the largest."""
CUT = 36
"""Pixels of the part of a record around its letter, which is enlarged to 56."""
RIGHT = 0.8
"""The probability that the annotator names the wanted badge, not another."""
OUT, SPREAD = 1.5, 1.5
"""Mean and standard deviation of the distance of the annotator's box from the badge, outwards, in pixels of 56."""
_SEED = 101
_APART = 9
"""The smallest number of dots in which two patterns differ."""
Pattern = tuple[int, ...]
"""CELLS × CELLS dots, 0 or 1, row by row."""


@cache
def patterns() -> tuple[Pattern, ...]:
    """Return the patterns, always the same."""
    rng = np.random.default_rng(_SEED)
    found: list[NDArray[np.int64]] = []
    while len(found) < PATTERNS:
        half = rng.integers(0, 2, (CELLS, (CELLS + 1) // 2))
        drawn = np.concatenate([half, half[:, : CELLS // 2][:, ::-1]], axis=1)
        if 9 <= drawn.sum() <= 16 and all((drawn != other).sum() >= _APART for other in found):
            found.append(drawn)
    return tuple(tuple(int(dot) for dot in each.ravel()) for each in found)


Badge = tuple[str, int]
"""The colour and the number of the pattern."""
BADGES: tuple[Badge, ...] = tuple((colour, number) for colour in SEEN_COLOURS for number in range(PATTERNS))


def badge_picture(badge: Badge, side: int) -> NDArray[np.uint8]:
    """Return a badge as colour numbers [side, side]."""
    colour, number = badge
    drawn = np.full((side, side), COLOUR_NUMBERS[colour], np.uint8)
    inner = side - 2 * FRAME
    cells = np.arange(inner) * CELLS // inner
    dots = np.array(patterns()[number], bool).reshape(CELLS, CELLS)[np.ix_(cells, cells)]
    drawn[FRAME : FRAME + inner, FRAME : FRAME + inner][~dots] = 0
    return drawn


@dataclass(frozen=True)
class BadgePage:
    """Badges on a page, of which the first is wanted, and the seed of the letters in the index."""

    badges: tuple[Badge, ...]
    boxes: tuple[Box, ...]
    """x1, y1, x2, y2 of each badge in pixels of the page."""
    seed: int

    @property
    def prompt(self) -> str:
        """The question about the first badge."""
        return f"Read the text on the {self.badges[0][0]} square."

    def letter(self, number: int) -> str:
        """Return the letter of a badge of `BADGES` in the index of this page."""
        return LETTERS[int(np.random.default_rng((self.seed, number)).integers(len(LETTERS)))]

    @property
    def wanted(self) -> int:
        """The number of the wanted badge in `BADGES`."""
        return BADGES.index(self.badges[0])

    def picture(self) -> Image.Image:
        """Return the page in RGB."""
        return Image.fromarray(PALETTE[self._numbers()])

    def uri(self) -> str:
        """Return the page as a PNG in a data URI."""
        return page_uri(self._numbers())

    def _numbers(self) -> NDArray[np.uint8]:
        page = np.zeros((PAGE, PAGE), np.uint8)
        for badge, (x1, y1, x2, y2) in zip(self.badges, self.boxes, strict=True):
            page[y1:y2, x1:x2] = badge_picture(badge, x2 - x1)
        return page


def record_picture(colour: str, letter: str) -> Image.Image:
    """Return what a record of the index says: its letter in the badge's colour [56, 56], in RGB."""
    drawn = np.zeros((CUT, CUT), np.uint8)
    left, top = (CUT - WIDTH) // 2, (CUT - HEIGHT) // 2
    drawn[top : top + HEIGHT, left : left + WIDTH][written(letter, 1)] = COLOUR_NUMBERS[colour]
    return Image.fromarray(PALETTE[drawn]).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)


def sample_badge_page(rng: np.random.Generator, single: bool) -> BadgePage:
    """Sample a page with four badges in random quarters, or with a single one."""
    colours = [SEEN_COLOURS[n] for n in rng.permutation(len(SEEN_COLOURS))[: 1 if single else 4]]
    badges = tuple((colour, int(rng.integers(PATTERNS))) for colour in colours)
    boxes: list[Box] = []
    for quarter in rng.permutation(4)[: len(colours)].tolist():
        side = int(rng.integers(*(SINGLE_SIDES if single else (SMALLEST, LARGEST))))
        room = PAGE if single else PAGE // 2
        left, top = (int(rng.integers(8, room - side - 7)) for _ in range(2))
        if not single:
            left, top = left + room * (quarter % 2), top + room * (quarter // 2)
        boxes.append((left, top, left + side, top + side))
    return BadgePage(badges, tuple(boxes), int(rng.integers(2**31)))


@cache
def badge_pages(split: str) -> tuple[BadgePage, ...]:
    """Return the pages of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of pages with badges: choose one of {', '.join(NAMES)}")
    part = split.rpartition("-")[2]
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))

    def draw(number: int) -> BadgePage:
        return sample_badge_page(rng, number % SINGLE == SINGLE - 1)

    return draw_disjoint(part, SIZES[part], draw, lambda page: checksum_of((page.badges, page.boxes)))


def annotated_box(page: BadgePage, rng: np.random.Generator) -> Box:
    """Return the careless annotator's box around a badge, in pixels of the page at 56×56."""
    x1, y1, x2, y2 = page.boxes[slip(0, range(len(page.boxes)), RIGHT, rng) if len(page.boxes) > 1 else 0]
    ratio = PAGE // PIXELS
    return loosened((x1 // ratio, y1 // ratio, -(-x2 // ratio), -(-y2 // ratio)), rng, OUT, SPREAD)


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, len(SIZES)))
    return tuple(
        Sample(
            id=f"{split}-{number:04d}",
            prompt=page.prompt,
            images=(page.uri(),),
            answer=page.letter(page.wanted),
            source="badges-single" if len(page.badges) == 1 else "badges-crowded",
            # the search decides what is read next, so the box alone can be demonstrated
            demonstration={"turns": [box_answer(annotated_box(page, rng))]} if split == "badges-train" else None,
            metadata={"wanted": page.wanted, "letters": page.seed},
        )
        for number, page in enumerate(badge_pages(split))
    )


def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))
