"""Preparation of the images that rewards score: checked before they are decoded, and converted to RGB in one way.

A file of 164 KB can hold an image of 9 GiB. The size of an opened image is known before it is decoded, so it is checked
first. A fault of the *answer* raises `InvalidAnswer`; a fault of a reference raises `ScoringFailed`.
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
from mmrl.data.media.uris import describe_reference, media_source
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed

MAX_PIXELS = 2**25
"""Pixels of the largest image that is decoded: a little more than 8K (7680 x 4320)."""

MAX_ASPECT_RATIO = 200
"""The largest ratio of the sides: networks scale the *shorter* side to their input size, and an image of 1 x 100,000
would take 15 GB."""

BROKEN_IMAGE = (OSError, SyntaxError, ValueError, EOFError, KeyError, struct.error, Image.DecompressionBombError)
_decoding = threading.Lock()


def answer_image(image: Any) -> Image.Image:
    """Return the image to score, as RGB.

    Transparency is composited on white, as viewers do, so that nothing can hide in invisible pixels. 16 bits per
    channel are scaled to 8. An image opened from a file is decoded here, by one thread at a time (a suite scores it
    with several rewards at once), and turned upright by its EXIF orientation.

    Raises:
        InvalidAnswer: it has more than `MAX_PIXELS` or no pixels, is a strip, has several frames, or 32 bits per
            channel.
        ScoringFailed: it is not a PIL image ("wrong_type"), or its file cannot be read ("unreadable").
    """
    if not isinstance(image, Image.Image):
        raise ScoringFailed(f"the answer is a {type(image).__name__}; expected a PIL image", "wrong_type")
    _check_size(image)
    try:
        with _decoding:
            frames = bool(getattr(image, "is_animated", False))
            if not frames:
                image.load()
    except BROKEN_IMAGE as err:
        raise ScoringFailed(f"the image cannot be read: {err or type(err).__name__}", "unreadable") from err
    if frames:
        raise InvalidAnswer("the image has several frames; expected one")
    _check_size(image)  # the directory of an icon file may state another size than its image has
    if image.mode in ("I", "F"):
        raise InvalidAnswer(f"the image's mode is {image.mode}: 32 bits per channel, whose range is not known")
    try:
        with _decoding:  # it reads the EXIF orientation, which changes the picture
            return as_rgb(image)
    except BROKEN_IMAGE as err:
        raise InvalidAnswer(f"an image of the mode {image.mode} cannot be converted to RGB: {err}") from err


def reference_image(reference: Any, key: str = "image") -> Image.Image:
    """Return the image that an answer is compared with, as RGB: `references[key]`, a path, a data URI or a PIL image.

    Raises:
        ScoringFailed: it is neither ("wrong_type"), or it fails the checks of `answer_image` ("reference").
    """
    if isinstance(reference, str | Path):
        try:
            with Image.open(media_source(reference)) as opened:  # nothing is decoded here
                _check_size(opened)
            return as_rgb(load_image(reference, alpha=True))
        except (*BROKEN_IMAGE, DataError, InvalidAnswer, Image.DecompressionBombWarning) as err:
            name = describe_reference(reference)
            raise ScoringFailed(f"references[{key!r}], {name}: {err or type(err).__name__}", "reference") from err
    if not isinstance(reference, Image.Image):
        raise ScoringFailed(
            f"references[{key!r}] is a {type(reference).__name__}; expected a path, a data URI or a PIL image",
            "wrong_type",
        )
    try:
        return answer_image(reference)
    except (InvalidAnswer, ScoringFailed) as err:
        raise ScoringFailed(f"references[{key!r}]: {err}", "reference") from err


def as_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image as RGB and upright: a new image, or the same one if it is both already."""
    if image.getexif().get(0x0112, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):  # Pillow would clip them at 255
        gray = np.round(np.asarray(image).astype(np.float32) / 257).astype(np.uint8)
        return Image.fromarray(gray).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def pixels(image: Image.Image) -> NDArray[np.float64]:
    """Return the values of an RGB image, [H, W, 3] in [0, 1]."""
    return np.asarray(image, np.float64) / 255


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise InvalidAnswer(f"the image has {width} x {height} pixels; at most {MAX_PIXELS} are scored")
    if width * height <= 0:
        raise InvalidAnswer(f"the image has {width} x {height} pixels")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise InvalidAnswer(
            f"the image has {width} x {height} pixels; one side may be {MAX_ASPECT_RATIO} times the other at most"
        )
