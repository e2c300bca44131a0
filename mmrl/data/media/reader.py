"""`MediaReader`: images and videos within a budget, from files or a cache; policies read media only through it."""

from __future__ import annotations

from PIL import Image

from mmrl.config.media import MediaConfig
from mmrl.data.media.budget import MediaBudget, fit_image
from mmrl.data.media.decode import load_image
from mmrl.data.media.media_cache import MediaCache, cache_of
from mmrl.data.media.video import Decoder, VideoFrames, read_video


def reader_of(media: MediaConfig) -> MediaReader:
    """Return the reader with the budgets, decoder and cache of a configuration."""
    return MediaReader(MediaBudget.of(media), media.video.decoder, cache_of(media))


class MediaReader:
    """A reader of media within a budget, from files and data URIs, or from a cache of prepared media.

        reader = MediaReader(MediaBudget())
        reader.image("pets/7.png")     # RGB, upright
        reader.video("clips/7.mp4")    # VideoFrames

    With a cache nothing is decoded: a medium that is not in it, or has changed since, raises `DataError`.
    """

    def __init__(self, budget: MediaBudget, decoder: Decoder = "auto", cache: MediaCache | None = None) -> None:
        if cache is not None and cache.budget != budget:
            raise ValueError("the cache was prepared under another budget")
        self.budget, self._decoder, self._cache = budget, decoder, cache

    def image(self, reference: str, sample_id: str | None = None) -> Image.Image:
        """Return an RGB image.

        Raises:
            DataError: it cannot be decoded, or is not in the cache.
        """
        if self._cache is not None:
            return self._cache.image(reference, sample_id)
        return fit_image(load_image(reference, sample_id), self.budget.image)

    def video(self, reference: str, sample_id: str | None = None) -> VideoFrames:
        """Return the sampled frames of a video.

        Raises:
            DataError: it cannot be decoded, or is not in the cache.
        """
        if self._cache is not None:
            return self._cache.video(reference, sample_id)
        return read_video(reference, self.budget.video, sample_id, self._decoder)
