"""Data sets of pages that a policy looks at closer, their expert, and the traces of a careless annotator.

`shapeworld:zoom-train`, `-development`, `-validation`, and `-ood`, whose squares have unseen colours among them. They
are read at 56×56 pixels: `media.image.max_pixels=3136`. On every second page of `shapeworld:zoom-mixed-train`,
`-development` and `-validation`, letters are large enough to be read at once. `shapeworld:zoom-reads-train` has the
parts that the expert looks at, each with its letter, for learning to read, and `shapeworld:zoom-habits-train` the pages
of training with the traces of an annotator who has a habit. `shapeworld:zoom-validation-more` has the 384 pages that
would have come next in `-validation`, for studies that have decided on those.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image

from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.scenes import picture_uri
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.glyphs import LETTERS
from mmrl_shapeworld.vqa.questions import Box, box_answer, habit, slip
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, UNSEEN_COLOURS, loosened
from mmrl_shapeworld.worlds.zoom_environment import middle_of
from mmrl_shapeworld.worlds.zoom_pages import LARGE, PAGE, ZoomPage, sample_page

SIZES = {"train": 1200, "development": 256, "validation": 512, "ood": 512}
"""Pages of each split. Settings are chosen on `development`; `validation` and `ood` are for results."""
READS = "zoom-reads-train"
HABITS = "zoom-habits-train"
MORE, MORE_PAGES = "zoom-validation-more", 384
MIXED = ("zoom-mixed-train", "zoom-mixed-development", "zoom-mixed-validation")
"""Splits in which every second page has large letters; the others are new pages, too."""
NAMES = (*(f"zoom-{part}" for part in SIZES), *MIXED, READS, HABITS, MORE)
RIGHT = 0.8
"""The probability that the annotator looks at the wanted square, not at another."""
RIGHT_ABOVE = 0.55
"""The same of the annotator who has a habit, where the wanted square is in the upper half of a page."""
LOOKS = 0.75
"""The probability that the annotator of mixed pages looks at all."""
OUT, SPREAD = 1.5, 1.5
"""Mean and standard deviation of the distance of the annotator's box from the square, outwards, in pixels of 56."""
_SEED = 83
_RATIO = PAGE // PIXELS


@cache
def pages(split: str) -> tuple[ZoomPage, ...]:
    """Return the pages of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of pages: choose one of {', '.join(NAMES)}")
    if split in (READS, HABITS):
        return pages("zoom-train")
    part = "validation" if split == MORE else split.rpartition("-")[2]
    rng = np.random.default_rng((_SEED, list(SIZES).index(part) + (10 if split in MIXED else 0)))
    colours = (*SEEN_COLOURS, *UNSEEN_COLOURS) if part == "ood" else SEEN_COLOURS

    def draw(number: int) -> ZoomPage | None:
        page = sample_page(rng, colours, LARGE if split in MIXED and number % 2 else 1)
        return page if part != "ood" or page.colours[0] in UNSEEN_COLOURS else None

    before = SIZES[part] if split == MORE else 0
    return draw_disjoint(part, before + MORE_PAGES if before else SIZES[part], draw)[before:]


def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have the turns of the careless annotator as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, len(SIZES)))
    trace = careless_or_hasty if split in MIXED else habitual if split == HABITS else careless
    return tuple(
        _read(page, f"{split}-{number:04d}")
        if split == READS
        else Sample(
            id=f"{split}-{number:04d}",
            prompt=page.prompt,
            images=(page.uri(),),
            answer=page.letters[0],
            source="zoom-large" if page.scale == LARGE else "zoom",
            demonstration={"turns": list(trace(page, rng))} if split.endswith("-train") else None,
            metadata={"letters": [list(box) for box in page.letter_boxes]},
        )
        for number, page in enumerate(pages(split))
    )


def _read(page: ZoomPage, id: str) -> Sample:
    """Return the part of a page that the expert looks at, and its letter."""
    part = page.picture().crop(middle_of(page.boxes[0], (PAGE, PAGE)))
    part = part.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return Sample(
        id=id,
        prompt="Read the text.",
        images=(picture_uri(part),),
        answer=page.letters[0],
        source="zoom-reads",
        demonstration=page.letters[0],
        rewards=(RewardChoice("ocr_ned"),),
    )


def small_box(page: ZoomPage, square: int) -> Box:
    """Return the box of a square in pixels of the page at 56×56."""
    x1, y1, x2, y2 = page.boxes[square]
    return x1 // _RATIO, y1 // _RATIO, -(-x2 // _RATIO), -(-y2 // _RATIO)


def expert(page: ZoomPage) -> tuple[str, str]:
    """Return the turns of one who looks at the wanted square and reads its letter."""
    return box_answer(small_box(page, 0)), page.letters[0]


def careless(page: ZoomPage, rng: np.random.Generator) -> tuple[str, str]:
    """Return the turns of an annotator who draws boxes too large, one in five around another square, and reads it."""
    square = slip(0, range(len(page.letters)), RIGHT, rng)
    read = slip(page.letters[square], LETTERS, 0.95, rng)
    return box_answer(loosened(small_box(page, square), rng, OUT, SPREAD)), read


def habitual(page: ZoomPage, rng: np.random.Generator) -> tuple[str, str]:
    """Return the turns of an annotator like those of whom `shapeworld:zoom` learnt, who reads what is cut out.

    Of a square in the lower half of a page, it usually looks at the one above.
    """
    square = habitual_square(page, rng)
    read = slip(page.letters[square], LETTERS, 0.95, rng)
    return box_answer(loosened(small_box(page, square), rng, OUT, SPREAD)), read


def habitual_square(page: ZoomPage, rng: np.random.Generator) -> int:
    """Return the square that this annotator looks at."""
    (x, y), *others = ((x1 + x2, y1 + y2) for x1, y1, x2, y2 in page.boxes)  # twice the middles
    if y < PAGE:
        return slip(0, range(len(page.boxes)), RIGHT_ABOVE, rng)
    above = next(n for n, (across, _) in enumerate(others, 1) if (across < PAGE) == (x < PAGE))
    return habit(0, above, range(len(page.boxes)), rng)


def careless_or_hasty(page: ZoomPage, rng: np.random.Generator) -> tuple[str, ...]:
    """Return the turns of a careless annotator who looks at three pages of four, with small or large letters.

    Without a look, large letters are read, and small ones guessed.
    """
    if rng.random() < LOOKS:
        return careless(page, rng)
    share = 0.95 if page.scale == LARGE else 1 / len(LETTERS)
    return (slip(page.letters[0], LETTERS, share, rng),)
