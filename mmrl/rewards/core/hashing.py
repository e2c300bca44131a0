"""SHA-256 of values: the keys of cached scores."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed


class Unhashable(ValueError):
    """A value whose contents cannot be hashed: an object of an unknown type, or an image that must not be decoded."""


def digest_of(*values: Any) -> bytes:
    """Return the SHA-256 of numbers, texts, images, arrays, tensors, paths, and of lists and mappings of them.

    Raises:
        Unhashable: a value is of another type, or an image is too large to decode.
    """
    digest = hashlib.sha256()
    try:
        _feed(digest, values)
    except RecursionError:
        raise Unhashable("a value contains itself, or is nested too deep") from None
    return digest.digest()


def digest_of_source(thing: Any) -> str:
    """Return the SHA-256 of the file that defines a class or function.

    Raises:
        Unhashable: no file defines it, as in a notebook.
    """
    try:
        return hashlib.sha256(Path(inspect.getfile(thing)).read_bytes()).hexdigest()
    except (OSError, TypeError) as err:
        raise Unhashable(f"the source of {thing.__qualname__} is in no file") from err


def _feed(digest: Any, value: Any) -> None:
    """Add a value to a hash: its type and size first, so that 1, "1" and [1] differ."""
    digest.update(f"<{type(value).__name__}>".encode())
    if value is None or isinstance(value, bool | int | float | complex | bytes):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, str | Path):
        text = str(value)
        digest.update(f"{len(text)}:".encode() + text.encode("utf-8", "surrogatepass") + _file_stamp(text).encode())
    elif isinstance(value, Mapping):
        digest.update(f"{len(value)}:".encode())
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            _feed(digest, key)
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)}:".encode())
        for each in value:
            _feed(digest, each)
    elif isinstance(value, Image.Image):
        _feed_image(digest, value)
    else:
        array = _as_array(value)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


def _feed_image(digest: Any, image: Image.Image) -> None:
    """Add an image as RGB and as stored: palette and transparency may matter to a user's reward."""
    try:
        rgb = answer_image(image)
    except (InvalidAnswer, ScoringFailed) as err:
        raise Unhashable(str(err)) from err
    palette = image.getpalette() if image.mode in ("P", "PA") else None
    _feed(digest, [image.mode, image.size, palette, str(image.info.get("transparency"))])
    digest.update(image.tobytes())
    digest.update(rgb.tobytes())


def _as_array(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the numpy array of numbers of an array, a numpy scalar or a tensor."""
    if type(value).__module__ == "torch":
        try:
            return np.asarray(value.detach().cpu().numpy())
        except (TypeError, RuntimeError, AttributeError) as err:  # bfloat16, sparse, no tensor
            raise Unhashable(f"a {type(value).__name__} of torch: {err}") from err
    if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biufcUS":
        return np.asarray(value)
    raise Unhashable(f"a {type(value).__name__} cannot be hashed by its contents")


def _file_stamp(text: str) -> str:
    """Return size and time of the file that a text names, so that another file under the same name is another value."""
    if not text or len(text) > 1024 or "\0" in text or "\n" in text:
        return ""
    try:
        stat = Path(text).stat()
    except (OSError, ValueError):
        return ""
    return f"{stat.st_size}:{stat.st_mtime_ns}"
