"""Compare two pictures by palette colour: the pixels that an edit or a filled hole left unchanged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from mmrl_shapeworld.checker import OFF_PALETTE
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS

Mask = NDArray[np.bool_]  # [H, W]
OFF = -1
"""The label of a pixel that is near no colour of the palette."""
_PALETTE = np.array([BACKGROUND, *COLOURS.values()], np.float32) / 255


def labels(picture: Image.Image) -> NDArray[np.int64]:
    """[H, W]; 0 for background, 1 and up for the colours in their order, `OFF` for none of them."""
    rgb = np.asarray(picture.convert("RGB"), np.float32) / 255
    distance = np.linalg.norm(rgb[:, :, None] - _PALETTE, axis=-1)
    return np.asarray(np.where(distance.min(-1) > OFF_PALETTE, OFF, distance.argmin(-1)))


def kept_share(picture: Image.Image, source: Image.Image, changed: Mask) -> float:
    """Return the share of the contents outside `changed` that is unchanged, in [0, 1].

    Of all pixels that are not background in the picture or in the source: the share that has the same colour in both.
    Edges of the source do not count, since autoencoders blend there; 1 where there is nothing to keep and nothing new.
    """
    before, after = labels(source), labels(picture)
    compared = ~changed & (ndimage.maximum_filter(before, 3) == ndimage.minimum_filter(before, 3))
    either = compared & ((before != 0) | (after != 0))
    total = int(either.sum())
    return 1.0 if total == 0 else float((either & (before == after)).sum() / total)


def dilate(mask: Mask, pixels: int = 1) -> Mask:
    """Return a mask dilated by a number of pixels."""
    return np.asarray(ndimage.binary_dilation(mask, np.ones((3, 3), bool), iterations=pixels))
