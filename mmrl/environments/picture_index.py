"""An index of pictures that parts of other pictures are searched in, at several scales.

    index = PictureIndex(embed, pictures)
    index.search(scene, [(10, 10, 40, 40)], scales=(0.8, 1.0, 1.5), top=3)    # for each box: numbers and scores

A search with a whole scene compares the mixture of all that it shows, and finds what resembles the mixture. A box
around one thing is a better query, and one that is drawn too large or too small is still a good one at another scale
(Vision-DeepResearch, arXiv:2601.22060): the score of a picture is its best cosine over the scales of the box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PixelBox = tuple[int, int, int, int]
"""x1, y1, x2, y2 in whole pixels, x2 and y2 exclusive."""
Embed = Callable[[Sequence[Image.Image]], NDArray[np.float32]]
"""From RGB pictures to unit vectors [B, D]."""


class PictureIndex:
    """The unit vectors of pictures."""

    def __init__(self, embed: Embed, pictures: Sequence[Image.Image], batch: int = 64) -> None:
        """
        Args:
            embed: the function that embeds the pictures, and every query.
            pictures: at least one.
            batch: pictures that are embedded at once.

        Raises:
            ValueError: there are no pictures.
        """
        if not pictures:
            raise ValueError("an index needs at least one picture")
        self._embed = embed
        parts = [embed(pictures[start : start + batch]) for start in range(0, len(pictures), batch)]
        self.vectors: NDArray[np.float32] = np.concatenate(parts)  # [N, D]

    def search(
        self, scene: Image.Image, boxes: Sequence[PixelBox], scales: Sequence[float], top: int
    ) -> list[list[tuple[int, float]]]:
        """Return for each box the numbers and cosines of the best `top` pictures, the best first.

        Of equal ones the earlier comes first. Parts of a scaled box outside the scene are left out.

        Raises:
            ValueError: there are no scales.
        """
        if not boxes:
            return []
        if not scales:
            raise ValueError("a search needs at least one scale")
        parts = [scene.crop(scaled_box(box, scale, scene.size)) for box in boxes for scale in scales]
        cosines = self._embed(parts) @ self.vectors.T
        best = cosines.reshape(len(boxes), len(scales), -1).max(axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :top]
        return [
            [(int(number), float(scores[number])) for number in found]
            for found, scores in zip(order, best, strict=True)
        ]


def scaled_box(box: PixelBox, scale: float, size: tuple[int, int]) -> PixelBox:
    """Return a box around the same middle, `scale` times as wide and high, inside a picture of width and height `size`.

    It has at least one pixel.

    >>> scaled_box((10, 20, 20, 40), 2.0, (100, 50))
    (5, 10, 25, 50)
    """
    x1, y1, x2, y2 = box
    (width, height), (half_w, half_h) = size, (scale * (x2 - x1) / 2, scale * (y2 - y1) / 2)
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    left, top = min(max(round(x - half_w), 0), width - 1), min(max(round(y - half_h), 0), height - 1)
    return left, top, min(max(round(x + half_w), left + 1), width), min(max(round(y + half_h), top + 1), height)
