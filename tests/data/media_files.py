"""Small pictures and videos that tests write, and the same as data URIs."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from mmrl.data.media.uris import data_uri


def moving_square(frames: int, size: tuple[int, int] = (64, 32)) -> list[Image.Image]:
    """A square that moves to the right over a gradient: no two frames are alike."""
    width, height = size
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    clip = []
    for number in range(frames):
        pixels = np.stack([across * 255 // width, down * 255 // height, np.full_like(across, 10 * number % 256)], -1)
        pixels[height // 4 : height // 2, number % (width - 8) : number % (width - 8) + 8] = (250, 20, 20)
        clip.append(Image.fromarray(pixels.astype(np.uint8)))
    return clip


def write_clip(path: Path, frames: Sequence[Image.Image], codec: str = "mpeg4", rate: int = 8, **options: Any) -> Path:
    with av.open(str(path), "w", **options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode(None))
    return path


def png_uri(image: Image.Image) -> str:
    buffer = BytesIO()
    image.save(buffer, "png")
    return data_uri(buffer.getvalue(), "image/png")


def gif_uri(frames: Sequence[Image.Image], milliseconds: int = 120) -> str:
    buffer = BytesIO()
    frames[0].save(buffer, "gif", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    return data_uri(buffer.getvalue(), "image/gif")


def few_colours(frames: Sequence[Image.Image]) -> list[Image.Image]:
    """As a GIF can hold them without loss."""
    return [frame.quantize(32).convert("RGB") for frame in frames]
