"""Pictures and videos of noise, so that no two and no two places of one look alike; as data URIs they need no files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from mmrl.data.media.uris import data_uri

RATE = 2.0  # frames a second: a media budget takes all of them


def picture(seed: int, width: int = 32, height: int = 32) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def frames(seed: int, count: int, side: int = 32) -> np.ndarray:
    """[T, side, side, 3] uint8, in greys: a GIF holds 256 colours, so it loses nothing."""
    greys = np.random.default_rng(seed).integers(0, 256, (count, side, side, 1), dtype=np.uint8)
    return greys.repeat(3, axis=3)


def as_png(result: Image.Image) -> str:
    file = io.BytesIO()
    result.save(file, "PNG")
    return data_uri(file.getvalue(), "image/png")


def as_gif(result: np.ndarray, seconds: float = 1 / RATE) -> str:
    """Return frames as a GIF that shows each for so long."""
    file = io.BytesIO()
    first, *others = (Image.fromarray(frame[:, :, 0]) for frame in result)
    first.save(file, "GIF", save_all=True, append_images=others, duration=round(1000 * seconds))
    return data_uri(file.getvalue(), "image/gif")
