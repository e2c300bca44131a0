"""Parse a picture into things and judge it against a caption, by rules alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from mmrl_shapeworld.captions import Caption, relation_holds
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, SHAPES, shape_mask, size_word

OFF_PALETTE = 0.3
"""RGB distance (channels in [0, 1]) from the nearest palette colour past which a pixel is off the palette."""
SMALLEST = 0.012
"""Components below this share of the picture are debris, not things (the smallest thing covers 0.024)."""
SHAPE_FIT = 0.8
"""Least IoU of a component and the ideal shape in the same box."""
DIRT = 0.06
"""Most dirt (off-palette and debris, as a share of all that is not background) of a strictly correct picture."""


@dataclass(frozen=True)
class Seen:
    """A thing that was found. Lengths are shares of the picture's side."""

    colour: str
    shape: str | None  # None: no shape fits well
    x: float
    y: float
    side: float

    @property
    def size(self) -> str:
        """small, medium or large."""
        return size_word(self.side)


@dataclass(frozen=True)
class Reading:
    """The contents of a picture."""

    things: tuple[Seen, ...]
    dirt: float  # share of all that is not background: off the palette inside areas, or debris


@dataclass(frozen=True)
class Verdict:
    """The agreement of a picture with a caption."""

    score: float  # [0, 1], partial credit by clause, lowered by dirt and by things that the caption does not name
    strict: bool  # exactly the caption's contents, without dirt
    reading: Reading


def read(picture: Image.Image) -> Reading:
    """Find the things in a picture: palette labels, connected components, the best-fitting shape of each."""
    rgb = np.asarray(picture.convert("RGB"), np.float32) / 255
    palette = np.array([BACKGROUND, *COLOURS.values()], np.float32) / 255
    distance = np.linalg.norm(rgb[:, :, None] - palette, axis=-1)  # [H, W, 1 + colours]
    label = distance.argmin(-1)
    off = (distance.min(-1) > OFF_PALETTE) & ~_on_an_edge(label)
    area = label.size
    things, debris = [], 0
    for number, colour in enumerate(COLOURS, start=1):
        components, _ = ndimage.label(label == number)
        for index, window in enumerate(ndimage.find_objects(components), start=1):
            mask = components[window] == index
            pixels = int(mask.sum())
            if pixels < SMALLEST * area:
                debris += pixels
            else:
                things.append(_thing(colour, mask, window, label.shape))
    filled = max(1, int((label > 0).sum()) + int((off & (label == 0)).sum()))
    return Reading(tuple(things), min(1.0, (int(off.sum()) + debris) / filled))


def _on_an_edge(label: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Pixels with a neighbour of another label: smooth decoders blend there, which is no fault."""
    return np.asarray(ndimage.maximum_filter(label, 3) != ndimage.minimum_filter(label, 3))


def _thing(colour: str, mask: NDArray[np.bool_], window: tuple[slice, slice], size: tuple[int, ...]) -> Seen:
    height, width = mask.shape
    side = max(height, width)
    fits = {shape: _fit(mask, shape) for shape in SHAPES}
    best = max(fits, key=lambda shape: fits[shape])
    return Seen(
        colour=colour,
        shape=best if fits[best] >= SHAPE_FIT and min(height, width) >= 0.7 * side else None,
        x=(window[1].start + width / 2) / size[1],
        y=(window[0].start + height / 2) / size[0],
        side=side / size[0],
    )


def _fit(mask: NDArray[np.bool_], shape: str) -> float:
    """IoU of a component and the ideal shape that fills the component's box."""
    ideal = ideal_shape(shape, mask.shape[0], mask.shape[1])
    return float((mask & ideal).sum() / (mask | ideal).sum())


def ideal_shape(shape: str, height: int, width: int) -> NDArray[np.bool_]:
    """[height, width]; the mask of a shape that fills its box, which need not be square."""
    side = max(height, width)
    ideal = shape_mask(shape, 0, 0, side, side)
    if (height, width) != (side, side):
        ideal = ndimage.zoom(ideal.astype(np.float32), np.array((height, width)) / side, order=1) > 0.5
    return ideal


def judge(picture: Image.Image, caption: Caption) -> Verdict:
    """Judge a picture against a caption.

    Each clause earns a quarter for as many things of its colour as it names, a quarter for its shape and
    half for the very kind; a relation earns one if it holds. The mean is lowered by dirt, by things
    that the caption does not name, and by things of no shape.
    """
    reading = read(picture)
    credits, exact = [], len(reading.things) == caption.total
    for clause in caption.clauses:
        same_colour = sum(c.count for c in caption.clauses if c.colour == clause.colour)
        same_shape = sum(c.count for c in caption.clauses if c.shape == clause.shape)
        of_kind = sum(clause.fits(t.colour, t.shape, t.size) for t in reading.things)
        credits.append(
            0.25 * _close(sum(t.colour == clause.colour for t in reading.things), same_colour)
            + 0.25 * _close(sum(t.shape == clause.shape for t in reading.things), same_shape)
            + 0.5 * _close(of_kind, clause.count)
        )
        exact = exact and of_kind == clause.count
    if caption.relation:
        holds = _relation_seen(reading, caption)
        credits.append(float(holds))
        exact = exact and holds
    extra = max(0, len(reading.things) - caption.total)
    score = sum(credits) / len(credits) * max(0.0, 1 - 2 * reading.dirt) / (1 + 0.5 * extra)
    return Verdict(score, exact and reading.dirt <= DIRT, reading)


def _close(found: int, wanted: int) -> float:
    return max(0.0, 1 - abs(found - wanted) / wanted)


def _relation_seen(reading: Reading, caption: Caption) -> bool:
    first, second = caption.clauses
    relation = caption.relation
    if relation is None:
        return False
    return any(
        relation_holds(a.x - b.x, a.y - b.y, relation)
        for a in reading.things
        if first.fits(a.colour, a.shape, a.size)
        for b in reading.things
        if second.fits(b.colour, b.shape, b.size)
    )
