"""Pictures and videos with random contents, blocky enough to survive an autoencoder."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image


def picture(path: Path, size: tuple[int, int], seed: int) -> Path:
    """A PNG."""
    path = path.with_suffix(".png")
    _blocks(np.random.default_rng(seed), size).save(path)
    return path


def video(path: Path, size: tuple[int, int, int], seed: int) -> Path:
    """A lossless video."""
    path = path.with_suffix(".mkv")
    width, height, frames = size
    random = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=8)
        stream.width, stream.height, stream.pix_fmt = width, height, "bgr0"
        for _ in range(frames):
            for packet in stream.encode(av.VideoFrame.from_image(_blocks(random, (width, height)))):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def _blocks(random: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    blocks = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST)
