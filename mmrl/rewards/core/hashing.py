"""What identifies a value: a hash that differs where the value does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


class Unhashable(ValueError):
    """A value of a type whose contents cannot be told, or that must not be looked into."""


def digest_of(*values: Any) -> bytes:
    """SHA-256 of numbers, texts, pictures, arrays, tensors, paths, and of lists and mappings of them.

    Raises:
        Unhashable: there is something else among them, such as an object of one's own or a picture too large to decode.
    """
    seen = hashlib.sha256()
    try:
        _feed(seen, values)
    except RecursionError:
        raise Unhashable("a value holds itself, or is nested too deep") from None
    return seen.digest()


def _feed(seen: Any, value: Any) -> None:
    """Add a value to a hash: its type and size first, so that 1, "1" and [1] differ."""
    seen.update(f"<{type(value).__name__}>".encode())
    if value is None or isinstance(value, bool | int | float | complex | bytes):
        seen.update(f"{value!r};".encode())
    elif isinstance(value, str | Path):
        text = str(value)
        seen.update(f"{len(text)}:".encode() + text.encode("utf-8", "surrogatepass") + _stamp(text).encode())
    elif isinstance(value, Mapping):
        seen.update(f"{len(value)}:".encode())
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            _feed(seen, key)
            _feed(seen, value[key])
    elif isinstance(value, list | tuple):
        seen.update(f"{len(value)}:".encode())
        for each in value:
            _feed(seen, each)
    elif isinstance(value, Image.Image):
        _feed_picture(seen, value)
    else:
        array = _as_array(value)
        seen.update(f"{array.dtype}{array.shape}".encode())
        seen.update(np.ascontiguousarray(array).tobytes())


def _feed_picture(seen: Any, picture: Image.Image) -> None:
    """As rewards see it (RGB), and as it is: palettes and transparency may matter to a reward of one's own."""
    from mmrl.rewards.core.base import InvalidAnswer, ScoringFailed
    from mmrl.rewards.core.image_input import answer_picture

    try:
        shown = answer_picture(picture)
    except (InvalidAnswer, ScoringFailed) as err:
        raise Unhashable(str(err)) from err
    palette = picture.getpalette() if picture.mode in ("P", "PA") else None
    _feed(seen, [picture.mode, picture.size, palette, str(picture.info.get("transparency"))])
    seen.update(picture.tobytes())
    seen.update(shown.tobytes())


def _as_array(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A numpy array of numbers, of an array, a number of numpy's, or a tensor."""
    if type(value).__module__ == "torch":
        try:
            return np.asarray(value.detach().cpu().numpy())
        except (TypeError, RuntimeError, AttributeError) as err:  # bfloat16, sparse, no tensor
            raise Unhashable(f"a {type(value).__name__} of torch: {err}") from err
    if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biufcUS":
        return np.asarray(value)
    raise Unhashable(f"a {type(value).__name__} has no contents that could be told")


def _stamp(text: str) -> str:
    """Size and time of the file that a text names, so that another file under the same name is another value."""
    if not text or len(text) > 1024 or "\0" in text or "\n" in text:
        return ""
    try:
        facts = Path(text).stat()
    except (OSError, ValueError):
        return ""
    return f"{facts.st_size}:{facts.st_mtime_ns}"
