"""A detector that works: ShapeWorld's rule checker, which finds what was drawn from the pixels alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image

from mmrl.rewards.core.reward_io import WeightFile
from mmrl.rewards.images.detector import Detection
from mmrl_shapeworld.checker import Reading, read
from mmrl_shapeworld.scenes import COLOURS


@lru_cache(maxsize=64)
def seen(data: bytes, size: tuple[int, int]) -> Reading:
    return read(Image.frombytes("RGB", size, data))


@dataclass
class ShapeDetector:
    """Finds circles, squares and triangles; the larger, the surer."""

    requested: list[Sequence[str]] = field(default_factory=list)

    def detect(self, image: Image.Image, classes: Sequence[str]) -> list[Detection]:
        self.requested.append(classes)
        size = image.width
        return [
            Detection(
                thing.shape,
                0.9 + thing.side / 10.01,
                tuple(
                    size * side
                    for side in (
                        thing.x - thing.side / 2,
                        thing.y - thing.side / 2,
                        thing.x + thing.side / 2,
                        thing.y + thing.side / 2,
                    )
                ),
            )
            for thing in seen(image.tobytes(), image.size).things
            if thing.shape in classes
        ]

    def weight_files(self) -> tuple[WeightFile, ...]:
        return ()


class PaletteColours:
    """Names the palette's colour that is nearest to the middle of a box."""

    def colours(self, image: Image.Image, found: Sequence[Detection]) -> list[str]:
        pixels = np.asarray(image, np.float64)
        names, palette = list(COLOURS), list(COLOURS.values())
        middles = [((y1 + y2) / 2, (x1 + x2) / 2) for x1, y1, x2, y2 in (thing.box for thing in found)]
        places = [(min(int(y), image.height - 1), min(int(x), image.width - 1)) for y, x in middles]
        return [names[int(np.abs(pixels[place] - palette).sum(1).argmin())] for place in places]

    def weight_files(self) -> tuple[WeightFile, ...]:
        return ()
