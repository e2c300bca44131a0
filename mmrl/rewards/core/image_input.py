"""The one door through which pictures come to a reward: checked before they are decoded, and made RGB in one way.

A file of 164 KB can hold a picture of 9 GiB. A picture that was opened and not yet decoded knows its size, so it is
refused first. What is wrong with an *answer* is `InvalidAnswer`; with a reference, `ScoringFailed`.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mmrl.data.media.decode import load_image
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed

MOST_PIXELS = 2**25
"""Pixels of the largest picture that is decoded: a little more than 8K (7680 x 4320)."""

MOST_LENGTHENED = 200
"""How many times longer than the other one side may be: networks scale the *shorter* side to their own size, and a
picture of 1 x 100,000 would take 15 GB."""

_BROKEN = (OSError, SyntaxError, ValueError, EOFError, KeyError, struct.error, Image.DecompressionBombError)
_decoding = threading.Lock()


def answer_image(picture: Any) -> Image.Image:
    """The picture to score, as RGB.

    Transparency is laid on white, as viewers show it, so that nothing can hide in pixels that no one sees. 16 bits a
    pixel are scaled to 8. A picture opened from a file is decoded here, by one thread at a time (a suite scores it with
    several rewards at once), and turned upright as its EXIF orientation says.

    Raises:
        InvalidAnswer: it has more than `MOST_PIXELS` or no pixels, is a strip, has several frames, or 32 bits a pixel.
        ScoringFailed: it is no PIL picture ("wrong_type"), or its file cannot be read ("unreadable").
    """
    if not isinstance(picture, Image.Image):
        raise ScoringFailed(f"the answer is a {type(picture).__name__}; a PIL image is due", "wrong_type")
    _refuse_size(picture)
    try:
        with _decoding:
            frames = bool(getattr(picture, "is_animated", False))
            if not frames:
                picture.load()
    except _BROKEN as err:
        raise ScoringFailed(f"the picture cannot be read: {err or type(err).__name__}", "unreadable") from err
    if frames:
        raise InvalidAnswer("the picture has several frames; one is due")
    _refuse_size(picture)  # an icon's directory may say another size than its picture has
    if picture.mode in ("I", "F"):
        raise InvalidAnswer(f"the picture's mode is {picture.mode}: 32 bits a pixel, whose range is not known")
    try:
        with _decoding:  # it reads the EXIF orientation, which changes the picture
            return as_rgb(picture)
    except _BROKEN as err:
        raise InvalidAnswer(f"a picture of the mode {picture.mode} cannot be made RGB: {err}") from err


def reference_image(reference: Any, key: str = "image") -> Image.Image:
    """The picture that an answer is compared with, as RGB: `references[key]`, a path or a PIL image.

    Raises:
        ScoringFailed: it is neither ("wrong_type"), or cannot be used ("reference").
    """
    if isinstance(reference, str | Path):
        try:
            with Image.open(reference) as opened:  # nothing is decoded here
                _refuse_size(opened)
            return as_rgb(load_image(reference, alpha=True))
        except (*_BROKEN, DataError, InvalidAnswer, Image.DecompressionBombWarning) as err:
            raise ScoringFailed(f"references[{key!r}], {reference}: {err or type(err).__name__}", "reference") from err
    if not isinstance(reference, Image.Image):
        raise ScoringFailed(
            f"references[{key!r}] is a {type(reference).__name__}; a path or a PIL image is due", "wrong_type"
        )
    try:
        return answer_image(reference)
    except (InvalidAnswer, ScoringFailed) as err:
        raise ScoringFailed(f"references[{key!r}]: {err}", "reference") from err


def as_rgb(picture: Image.Image) -> Image.Image:
    """A decoded picture as RGB and upright; a new picture, or the same one where nothing is to be done."""
    if picture.getexif().get(0x0112, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode.startswith("I;16"):  # Pillow would clip them at 255
        grey = np.round(np.asarray(picture).astype(np.float32) / 257).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    seen = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")


def pixels(picture: Image.Image) -> NDArray[np.float64]:
    """[H, W, 3]; an RGB picture's values in [0, 1]."""
    return np.asarray(picture, np.float64) / 255


def _refuse_size(picture: Image.Image) -> None:
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise InvalidAnswer(f"the picture has {width} x {height} pixels; at most {MOST_PIXELS} are looked at")
    if width * height <= 0:
        raise InvalidAnswer(f"the picture has {width} x {height} pixels")
    if max(width, height) > MOST_LENGTHENED * min(width, height):
        raise InvalidAnswer(
            f"the picture has {width} x {height} pixels; one side may be {MOST_LENGTHENED} times the other at most"
        )
