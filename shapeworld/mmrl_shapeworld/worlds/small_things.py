"""Pages with clusters of things that are too small to be recognised, of which a few regions are looked at closer.

A page of 56×56 pixels has three clusters of two or three small things of the wanted colour, small things of other
colours between them, and two large things. The prompt (`Detect all red shapes.`) names the colour; the answer names up
to three regions, and is scored by `region_proposals`: a thing is found if a region of at most 20 pixels shows it whole.
`FixedRegions` scores regions that follow no picture, with the same number and size.

Splits are `small-train`, `-development` and `-validation`. On the pages of `apart-train` and so on the wanted things
are three, of eight to ten pixels and too far from one another for two of them to be shown in one region. Training data
have their boxes as demonstrations, for a first stage that detects them; a region has to be larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.boxes import true_boxes
from mmrl.rewards.rules.region_proposals import RegionProposals
from mmrl_shapeworld.vqa.canvas import PIXELS, Picture, blank, png_uri
from mmrl_shapeworld.vqa.questions import IN_PIXELS, Box
from mmrl_shapeworld.worlds.crowds import bare_boxes
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, SEEN_SHAPES, paint_thing

SIZES = {"train": 1200, "development": 256, "validation": 512}
"""Pages of each split. Settings are chosen on `development`; `validation` is for results."""
APART = "apart"
NAMES = tuple(f"{kind}-{part}" for kind in ("small", APART) for part in SIZES)
CLUSTERS = 3
SIDES = (4, 6)
"""The smallest side of a small thing in pixels, and one above the largest."""
SPREAD = 15
"""Width and height of a cluster, at most, in pixels."""
APART_SIDES = (8, 11)
"""The same of a thing of `apart-train`."""
LARGE_SIDES = (10, 14)
LARGE, OTHERS = 2, 4
"""Large things, and small ones of other colours."""
REGION = 20
"""The longest side of a region in which a small thing can be recognised, in pixels."""
DRAWS = 64
"""Sets of random regions that are averaged over."""
_SEED = 107


@cache
def _pages(split: str) -> tuple[tuple[str, tuple[Box, ...], bytes], ...]:
    """Return the prompt, the boxes of the wanted things and the picture of each page of a split."""
    kind, _, part = split.partition("-")
    rng = np.random.default_rng((_SEED, list(SIZES).index(part) + (len(SIZES) if kind == APART else 0)))
    draw = _sample_page_apart if kind == APART else _sample_page
    return draw_disjoint(part, SIZES[part], lambda number: draw(rng))


def _sample_page(rng: np.random.Generator) -> tuple[str, tuple[Box, ...], bytes]:
    wanted, *others = (str(SEEN_COLOURS[n]) for n in rng.permutation(len(SEEN_COLOURS)))
    picture, taken = blank(), np.zeros((PIXELS, PIXELS), bool)
    boxes: list[Box] = []
    for _ in range(CLUSTERS):
        x, y = _free(taken, SPREAD, rng)
        count = int(rng.integers(2, 4))
        cells = [(0, 0), (1, 0), (0, 1), (1, 1)]
        for cell in rng.permutation(4)[:count].tolist():
            side = int(rng.integers(*SIDES))
            left, top = (
                corner + 8 * step + int(rng.integers(0, 3)) for corner, step in zip((x, y), cells[cell], strict=True)
            )
            boxes.append(paint_thing(picture, wanted, _shape(rng), left, top, side))
        taken[y : y + SPREAD, x : x + SPREAD] = True
    for sides, number in ((LARGE_SIDES, LARGE), (SIDES, OTHERS)):
        for _ in range(number):
            side = int(rng.integers(*sides))
            left, top = _free(taken, side, rng)
            paint_thing(picture, others[int(rng.integers(len(others)))], _shape(rng), left, top, side)
            taken[top : top + side, left : left + side] = True
    return f"Detect all {wanted} shapes.", tuple(sorted(boxes)), picture.tobytes()


def _sample_page_apart(rng: np.random.Generator) -> tuple[str, tuple[Box, ...], bytes]:
    """Sample three things of the wanted colour, no two of which fit into one region, and others between them."""
    wanted, *others = (str(SEEN_COLOURS[n]) for n in rng.permutation(len(SEEN_COLOURS)))
    picture, taken = blank(), np.zeros((PIXELS, PIXELS), bool)
    while True:
        sides = rng.integers(*APART_SIDES, CLUSTERS)
        corners = [rng.integers(1, PIXELS - side, 2) for side in sides]
        spans = [
            np.maximum(one + a, other + b) - np.minimum(one, other)
            for n, (one, a) in enumerate(zip(corners, sides, strict=True))
            for other, b in list(zip(corners, sides, strict=True))[:n]
        ]
        if all(span.max() > REGION + 2 for span in spans):
            break
    boxes: list[Box] = []
    for (left, top), side in zip((corner.tolist() for corner in corners), sides.tolist(), strict=True):
        boxes.append(paint_thing(picture, wanted, _shape(rng), left, top, side))
        taken[top : top + side, left : left + side] = True
    for _ in range(OTHERS):
        side = int(rng.integers(*APART_SIDES))
        left, top = _free(taken, side, rng)
        if not taken[top : top + side, left : left + side].any():
            paint_thing(picture, others[int(rng.integers(len(others)))], _shape(rng), left, top, side)
            taken[top : top + side, left : left + side] = True
    return f"Detect all {wanted} shapes.", tuple(sorted(boxes)), picture.tobytes()


def _free(
    taken: np.ndarray[tuple[int, int], np.dtype[np.bool_]], side: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Return the corner (left, top) of a square that nothing lies in, or with the fewest taken pixels of 200."""
    left, top = rng.integers(1, PIXELS - side, (200, 2)).T
    sums = np.pad(taken.cumsum(0).cumsum(1), ((1, 0), (1, 0)))  # of the rectangle from the first pixel to each corner
    inside = sums[top + side, left + side] - sums[top, left + side] - sums[top + side, left] + sums[top, left]
    best = inside.argmin()
    return int(left[best]), int(top[best])


def _shape(rng: np.random.Generator) -> str:
    return SEEN_SHAPES[int(rng.integers(len(SEEN_SHAPES)))]


def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of small things: choose one of {', '.join(NAMES)}")
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            id=f"{split}-{number:04d}",
            prompt=prompt,
            images=(png_uri(_picture(pixels)),),
            answer=[{"box": list(box)} for box in boxes],
            source=split.partition("-")[0],
            demonstration=bare_boxes(boxes) if split == f"{APART}-train" else None,
            metadata=dict(IN_PIXELS),
        )
        for number, (prompt, boxes, pixels) in enumerate(_pages(split))
    )


def _picture(pixels: bytes) -> Picture:
    return np.frombuffer(pixels, np.uint8).reshape(PIXELS, PIXELS)


class FixedRegions(RegionProposals):
    """A reward that scores regions which follow no picture, on average: of a grid, or at random.

    They are squares of the largest size that shows small things, as many as the policy may name; what the policy writes
    has no effect. `grid` averages over the cells of a grid that covers the page, `random` over 64 draws.
    """

    name = "region_proposals"

    def __init__(self, kind: Literal["grid", "random"], most: int = CLUSTERS, zoom: float = PIXELS / REGION) -> None:
        """
        Args:
            kind: grid or random.
            most: regions of an answer.
            zoom: the enlargement that the task needs.
        """
        super().__init__(most=most, zoom=zoom)
        if kind not in ("grid", "random"):
            raise RewardError(f"{self.name}: kind is {kind!r}; it is grid or random")
        self.kind = kind

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        truth = true_boxes(item.references, self.space)
        things = truth.in_common_space([])[1]
        side = PIXELS / self.zoom
        rng = np.random.default_rng(0)
        across = int(np.ceil(self.zoom))
        edges = np.linspace(0, PIXELS - side, across)
        cells = np.array([(x, y) for y in edges for x in edges])
        found: list[Mapping[str, float]] = []
        for _ in range(DRAWS):
            if self.kind == "grid":
                corners = cells[rng.permutation(len(cells))[: self.most]]
            else:
                corners = rng.uniform(0, PIXELS - side, (self.most, 2))
            found.append(self.parts(np.concatenate([corners, corners + side], axis=1), things, (PIXELS, PIXELS)))
        return {name: float(np.mean([each[name] for each in found])) for name in found[0]}
