"""`SourcePictures`: the pictures of samples at the size of their files, shared by the episodes of an environment."""

from __future__ import annotations

import threading
from collections import OrderedDict

from PIL import Image

from mmrl.data.media.budget import ImageBudget, fit_image
from mmrl.data.media.decode import load_image

MAX_PIXELS = 16_777_216
"""The pixels (width x height) above which a picture is reduced before tools use it."""
CACHE_BYTES = 512 * 2**20
"""Bytes of decoded pictures that are kept by default."""


class SourcePictures:
    """Reads pictures of up to `MAX_PIXELS`, and keeps the last ones: the rows of a group have the same sample."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit, self._bytes = limit_bytes, 0
        self._kept: OrderedDict[str, Image.Image] = OrderedDict()
        self._lock = threading.Lock()  # guards the fields above

    def read(self, reference: str, sample_id: str | None = None) -> Image.Image:
        """Return an RGB picture; the caller must not change it.

        Raises:
            DataError: it cannot be decoded.
        """
        with self._lock:
            if reference in self._kept:
                self._kept.move_to_end(reference)
                return self._kept[reference]
        picture = fit_image(load_image(reference, sample_id), ImageBudget(0, MAX_PIXELS))
        with self._lock:
            if reference not in self._kept:
                self._kept[reference] = picture
                self._bytes += _bytes_of(picture)
            while self._bytes > self._limit:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= _bytes_of(dropped)
        return picture


def _bytes_of(picture: Image.Image) -> int:
    return 3 * picture.width * picture.height
