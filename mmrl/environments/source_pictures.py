"""`SourcePictures`: the pictures of samples at the size of their files, shared by the episodes of an environment."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from PIL import Image

from mmrl.data.media.budget import ImageBudget, fit_image
from mmrl.data.media.decode import load_image

MAX_PIXELS = 16_777_216
"""The pixels (width x height) above which a picture is reduced before tools use it."""
CACHE_BYTES = 512 * 2**20
"""Bytes of decoded pictures that are kept by default."""


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)  # held by the thread that decodes
    picture: Image.Image | None = None


class SourcePictures:
    """Reads pictures of up to `MAX_PIXELS`, and keeps the last ones: the rows of a group have the same sample."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit, self._bytes = limit_bytes, 0
        self._kept: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()  # guards the fields above

    def read(self, reference: str, sample_id: str | None = None) -> Image.Image:
        """Return an RGB picture; the caller must not change it. Threads that want the same one wait for each other.

        Raises:
            DataError: it cannot be decoded.
        """
        with self._lock:
            entry = self._kept.setdefault(reference, _Entry())
            self._kept.move_to_end(reference)
        with entry.lock:
            if entry.picture is None:
                entry.picture = fit_image(load_image(reference, sample_id), ImageBudget(0, MAX_PIXELS))
                self._account_for(reference, entry)
            return entry.picture

    def _account_for(self, reference: str, entry: _Entry) -> None:
        """Add the bytes of a decoded picture, and drop the oldest ones above the limit."""
        with self._lock:
            if self._kept.get(reference) is entry:
                self._bytes += _bytes_of(entry)
            while self._bytes > self._limit:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= _bytes_of(dropped)


def _bytes_of(entry: _Entry) -> int:
    return 0 if entry.picture is None else 3 * entry.picture.width * entry.picture.height
