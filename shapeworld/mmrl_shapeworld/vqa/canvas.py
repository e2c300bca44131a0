"""Pictures of 56×56 pixels in a few colours: scattered, drawn as arrays of colour numbers, and encoded as data URIs."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.uris import data_uri
from mmrl_shapeworld.captions import Kind
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, picture_uri, shape_mask

PIXELS = 56
INK, LINE = len(COLOURS) + 1, len(COLOURS) + 2
"""Colour numbers beside those of things, which count from 1 in the order of `COLOURS`; 0 is the background."""
MORE_COLOURS: dict[str, tuple[int, int, int]] = {"orange": (245, 130, 30), "purple": (150, 60, 190)}
"""Colours of things in out-of-distribution splits alone."""
SKY, SAND = LINE + 1 + len(MORE_COLOURS), LINE + 2 + len(MORE_COLOURS)
"""Colour numbers of backgrounds."""
PALETTE = np.array(
    [
        BACKGROUND,
        *COLOURS.values(),
        (30, 30, 30),
        (190, 190, 190),
        *MORE_COLOURS.values(),
        (200, 225, 245),
        (240, 225, 195),
    ],
    np.uint8,
)
FRAMES_PER_SECOND = 2
NUMBERS = {name: number for number, name in enumerate(COLOURS, start=1)}

Picture = NDArray[np.uint8]
"""[56, 56]; a number of `PALETTE` for each pixel."""


def palette_of(frames: Sequence[Picture]) -> NDArray[np.uint8]:
    """Return [7 or more, 3], the first colours of the palette, up to the last one that the frames show."""
    return PALETTE[: max(LINE, *(int(frame.max()) for frame in frames)) + 1]


def blank() -> Picture:
    """A picture of nothing."""
    return np.zeros((PIXELS, PIXELS), np.uint8)


@cache
def stencil(shape: str, side: int) -> NDArray[np.bool_]:
    """[side, side]; the pixels that a thing covers of its square."""
    return shape_mask(shape, 0, 0, side, side)


def paint(picture: Picture, kind: Kind, left: int, top: int, side: int) -> tuple[int, int, int, int]:
    """Draw a thing in the square at (left, top), as `scenes.draw` would.

    Returns the box (x1, y1, x2, y2) around its pixels, x2 and y2 exclusive.
    """
    colour, shape = kind
    mask = stencil(shape, side)
    picture[top : top + side, left : left + side][mask] = NUMBERS[colour]
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1


def scatter(sides: Sequence[int], rng: np.random.Generator, gap: int = 3) -> list[tuple[int, int]]:
    """Corners (left, top) of squares of the given sides, in pixels, at least `gap` apart."""
    while True:
        placed: list[tuple[int, int]] = []
        for number, side in enumerate(sides):
            for left, top in rng.integers(1, PIXELS - side, (20, 2)).tolist():
                if all(
                    left + side + gap <= x
                    or x + sides[other] + gap <= left
                    or top + side + gap <= y
                    or y + sides[other] + gap <= top
                    for other, (x, y) in enumerate(placed)
                ):
                    placed.append((left, top))
                    break
            if len(placed) == number:
                break  # no room: begin again
        if len(placed) == len(sides):
            return placed


def colours_of(picture: Picture) -> NDArray[np.uint8]:
    """[56, 56, 3] RGB."""
    return PALETTE[picture]


def png_uri(picture: Picture) -> str:
    """A data URI. Written here rather than by Pillow, which takes four times as long for pictures this small."""
    rows = np.zeros((PIXELS, PIXELS + 1), np.uint8)  # each row begins with the number of its filter: none
    rows[:, 1:] = picture
    header = struct.pack(">IIBBBBB", PIXELS, PIXELS, 8, 3, 0, 0, 0)  # eight bits, a palette
    parts = (
        (b"IHDR", header),
        (b"PLTE", palette_of([picture]).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 1)),
        (b"IEND", b""),
    )
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return data_uri(b"\x89PNG\r\n\x1a\n" + b"".join(chunks), "image/png")


def page_uri(page: NDArray[np.uint8]) -> str:  # [H, W], numbers of `PALETTE`
    """A data URI of a picture of any size, as a PNG that Pillow writes."""
    image = Image.fromarray(page, "P")
    image.putpalette(PALETTE.tobytes())
    return picture_uri(image)


def gif_uri(frames: Sequence[Picture]) -> str:
    """A data URI of a clip, two frames a second. Neighbouring frames must differ: Pillow joins those that do not."""
    images = [Image.fromarray(frame, "P") for frame in frames]
    for image in images:
        image.putpalette(palette_of(frames).tobytes())
    buffer = io.BytesIO()
    images[0].save(
        buffer, "GIF", save_all=True, append_images=images[1:], duration=1000 // FRAMES_PER_SECOND, optimize=False
    )
    return data_uri(buffer.getvalue(), "image/gif")
