"""Scenes of coloured shapes, and their pictures, boxes and masks at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.uris import png_uri

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 45, 45),
    "green": (45, 165, 75),
    "blue": (50, 85, 220),
    "yellow": (240, 200, 40),
}
BACKGROUND: tuple[int, int, int] = (245, 245, 245)
SHAPES: tuple[str, ...] = ("circle", "square", "triangle")
SMALL, LARGE = 0.31, 0.47
"""An object whose side is below SMALL of the picture is small; above LARGE, large."""


@dataclass(frozen=True)
class Thing:
    """A coloured shape. Lengths are shares of the picture's side; y grows downwards."""

    colour: str
    shape: str
    x: float  # centre of the box
    y: float
    side: float  # of the square box around it

    @property
    def box(self) -> tuple[float, float, float, float]:
        """(x1, y1, x2, y2) in [0, 1]."""
        half = self.side / 2
        return self.x - half, self.y - half, self.x + half, self.y + half

    @property
    def size(self) -> str:
        """small, medium or large."""
        return size_word(self.side)


def size_word(side: float) -> str:
    """small, medium or large, for a side as a share of the picture's side."""
    return "small" if side < SMALL else "large" if side > LARGE else "medium"


@dataclass(frozen=True)
class Scene:
    """Things that do not touch each other."""

    things: tuple[Thing, ...]


def shape_mask(shape: str, left: float, top: float, side: float, pixels: int) -> NDArray[np.bool_]:
    """Return the mask of pixel centres that a shape covers in a square picture; left, top and side are in pixels."""
    centres = np.arange(pixels) + 0.5
    u = ((centres - left) / side)[None, :]  # 0 to 1 across the box
    v = ((centres - top) / side)[:, None]
    inside = (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)
    if shape == "circle":
        return np.asarray(inside & ((u - 0.5) ** 2 + (v - 0.5) ** 2 <= 0.25))
    if shape == "triangle":  # standing on its base
        return np.asarray(inside & (np.abs(u - 0.5) <= v / 2))
    if shape == "square":
        return np.asarray(inside)
    raise ValueError(f"unknown shape {shape!r}: expected one of {', '.join(SHAPES)}")


def thing_mask(thing: Thing, pixels: int) -> NDArray[np.bool_]:
    """[pixels, pixels]; the pixels that a thing covers. Its box is snapped to whole pixels, as it is drawn."""
    side = max(3, round(thing.side * pixels))
    left = round(thing.x * pixels - side / 2)
    top = round(thing.y * pixels - side / 2)
    return shape_mask(thing.shape, left, top, side, pixels)


def draw(scene: Scene, pixels: int = 32) -> Image.Image:
    """The RGB picture of a scene, from 32 to 128 pixels a side (other sizes work too)."""
    canvas = np.empty((pixels, pixels, 3), np.uint8)
    canvas[:] = BACKGROUND
    for thing in scene.things:
        canvas[thing_mask(thing, pixels)] = COLOURS[thing.colour]
    return Image.fromarray(canvas)


def picture_uri(picture: Image.Image) -> str:
    """Return a picture as the data URI of a PNG."""
    return png_uri(picture)


def pixel_boxes(scene: Scene, pixels: int) -> NDArray[np.int64]:
    """[N, 4]; the (x1, y1, x2, y2) of each thing as drawn, x2 and y2 exclusive."""
    boxes = []
    for thing in scene.things:
        rows, columns = np.nonzero(thing_mask(thing, pixels))
        boxes.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    return np.array(boxes, np.int64).reshape(-1, 4)


def place(
    kinds: Sequence[tuple[str, str, float]],  # (colour, shape, side) of each thing
    rng: np.random.Generator,
    gap: float = 0.07,
    tries: int = 200,
) -> Scene | None:
    """Things at random places, at least `gap` apart and inside the picture; None if they do not fit."""
    for _ in range(tries):
        things: list[Thing] = []
        for colour, shape, side in kinds:
            low, high = side / 2 + 0.03, 1 - side / 2 - 0.03
            thing = Thing(colour, shape, float(rng.uniform(low, high)), float(rng.uniform(low, high)), side)
            if any(_too_close(thing, other, gap) for other in things):
                break
            things.append(thing)
        else:
            return Scene(tuple(things))
    return None


def _too_close(a: Thing, b: Thing, gap: float) -> bool:
    reach = (a.side + b.side) / 2 + gap
    return abs(a.x - b.x) < reach and abs(a.y - b.y) < reach
