"""Holes to fill ("a green square"), their pictures and masks, and whether the right thing stands in one.

A thing of a scene is masked together with its surroundings; the prompt names what is to stand there instead. What lies
outside the mask must stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl_shapeworld.captions import KINDS, NUMBERS, Kind
from mmrl_shapeworld.checker import DIRT, read
from mmrl_shapeworld.scenes import Scene, Thing, draw, picture_uri, place
from mmrl_shapeworld.similarity import dilate, kept_share

PIXELS = 32
GRID = 4
"""Holes end where latent pixels do: the mask that the UNet sees is as fine as its latent."""
KEPT = 0.95
"""Least share of the rest that a strictly right filling keeps."""


@dataclass(frozen=True)
class Hole:
    """A scene, the box that is masked in it, and what is to stand there. The box is in pixels of a 32×32 picture."""

    source: Scene
    box: tuple[int, int, int, int]  # x1, y1, x2, y2; x2 and y2 exclusive
    colour: str
    shape: str

    def __str__(self) -> str:
        return f"{NUMBERS[1]} {self.colour} {self.shape}"

    def mask(self, pixels: int = PIXELS) -> NDArray[np.bool_]:
        """[pixels, pixels]; True inside of the hole."""
        x1, y1, x2, y2 = (edge * pixels // PIXELS for edge in self.box)
        inside = np.zeros((pixels, pixels), bool)
        inside[y1:y2, x1:x2] = True
        return inside

    def mask_picture(self) -> Image.Image:
        """The mask as a pipeline takes it: white inside of the hole."""
        return Image.fromarray(self.mask()).convert("L")

    def conditions(self) -> dict[str, str]:
        """Return the picture and the mask, for `Sample.conditions`."""
        return {"image": picture_uri(draw(self.source)), "mask_image": picture_uri(self.mask_picture())}

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point, in shares of the picture's side, lies in the hole."""
        x1, y1, x2, y2 = (edge / PIXELS for edge in self.box)
        return x1 <= x < x2 and y1 <= y < y2

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        things = [vars(thing) for thing in self.source.things]
        return {"things": things, "box": list(self.box), "colour": self.colour, "shape": self.shape}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Hole:
        """Return the hole of `as_dict`."""
        x1, y1, x2, y2 = data["box"]
        scene = Scene(tuple(Thing(**thing) for thing in data["things"]))
        return cls(scene, (x1, y1, x2, y2), data["colour"], data["shape"])


@dataclass(frozen=True)
class HoleVerdict:
    """The scores of a filled hole."""

    score: float  # [0, 1]: what stands in the hole, times what was kept, lowered by dirt
    filled: float  # [0, 1]: how far the thing in the hole is that of the prompt
    kept: float  # [0, 1]: how much of the rest still stands
    strict: bool


def sample_hole(rng: np.random.Generator, kinds: tuple[Kind, ...] = KINDS) -> tuple[Hole, Scene]:
    """A hole, and a scene that fills it rightly: the prompt's thing at a random place inside, the rest as it was."""
    while True:
        count = int(rng.choice([1, 2, 3], p=[0.2, 0.5, 0.3]))
        chosen = [kinds[int(number)] for number in rng.integers(len(kinds), size=count)]
        low, high = {1: (0.3, 0.44), 2: (0.26, 0.38), 3: (0.24, 0.3)}[count]
        scene = place([(*kind, float(rng.uniform(low, high))) for kind in chosen], rng, gap=0.1)
        if scene is None:
            continue
        box = _hole_around(scene.things[0], rng)
        hole = Hole(scene, box, *kinds[int(rng.integers(len(kinds)))])
        if any(_touches(box, thing) for thing in scene.things[1:]):
            continue
        filled = _filled(hole, rng)
        if filled is not None:
            return hole, filled


def judge_hole(picture: Image.Image, hole: Hole) -> HoleVerdict:
    """Judge a filled picture.

    A single thing in the hole earns a quarter for its colour, a quarter for its shape and half for both; where there
    are more, the best of them earns as much divided by their number. That is multiplied by the share of the rest that
    still stands, and lowered by dirt.
    """
    reading = read(picture)
    inside = [thing for thing in reading.things if hole.holds(thing.x, thing.y)]
    credits = [
        0.25 * (thing.colour == hole.colour)
        + 0.25 * (thing.shape == hole.shape)
        + 0.5 * (thing.colour == hole.colour and thing.shape == hole.shape)
        for thing in inside
    ]
    filled = max(credits, default=0.0) / max(1, len(inside))
    pixels = picture.size[0]
    kept = kept_share(picture, draw(hole.source, pixels), dilate(hole.mask(pixels), max(1, pixels // 32)))
    score = filled * kept * max(0.0, 1 - 2 * reading.dirt)
    strict = filled == 1.0 and kept >= KEPT and reading.dirt <= DIRT
    return HoleVerdict(score, filled, kept, bool(strict) and len(reading.things) == len(hole.source.things))


def _hole_around(thing: Thing, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A box of whole latent pixels around a thing, with a little room on some sides."""
    x1, y1, x2, y2 = (edge * PIXELS / GRID for edge in thing.box)
    room = rng.uniform(0.1, 0.7, 4)
    last = PIXELS // GRID
    edges = (
        max(0, int(np.floor(x1 - room[0]))),
        max(0, int(np.floor(y1 - room[1]))),
        min(last, int(np.ceil(x2 + room[2]))),
        min(last, int(np.ceil(y2 + room[3]))),
    )
    return edges[0] * GRID, edges[1] * GRID, edges[2] * GRID, edges[3] * GRID


def _touches(box: tuple[int, int, int, int], thing: Thing) -> bool:
    """Return whether a thing, as drawn, reaches into a hole."""
    x1, y1, x2, y2 = (edge * PIXELS for edge in thing.box)
    return x1 - 1 < box[2] and x2 + 1 > box[0] and y1 - 1 < box[3] and y2 + 1 > box[1]


def _filled(hole: Hole, rng: np.random.Generator) -> Scene | None:
    """The scene with the prompt's thing in the hole; None where the hole is too small for one."""
    x1, y1, x2, y2 = (edge / PIXELS for edge in hole.box)
    margin = 1 / PIXELS
    largest = min(x2 - x1, y2 - y1) - 2 * margin
    if largest < 0.24:
        return None
    side = float(rng.uniform(0.24, min(largest, 0.46)))
    x = float(rng.uniform(x1 + margin + side / 2, x2 - margin - side / 2))
    y = float(rng.uniform(y1 + margin + side / 2, y2 - margin - side / 2))
    return Scene((Thing(hole.colour, hole.shape, x, y, side), *hole.source.things[1:]))
