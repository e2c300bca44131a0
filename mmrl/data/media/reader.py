"""Pictures and videos as a model is shown them: the one door through which policies read media."""

from __future__ import annotations

from PIL import Image

from mmrl.config.media import MediaConfig
from mmrl.data.media.budget import MediaBudget, fit_image
from mmrl.data.media.decode import load_image
from mmrl.data.media.media_cache import MediaCache, cache_of
from mmrl.data.media.video import Decoder, VideoFrames, read_video


def reader_of(media: MediaConfig) -> MediaReader:
    """What a configuration says of budgets, decoder and cache."""
    return MediaReader(media.budget(), media.video.decoder, cache_of(media))


class MediaReader:
    """Reads media within a budget: from their files or data URIs, or from a cache of prepared ones.

    reader = MediaReader(MediaBudget())
    reader.image("pets/7.png")     # RGB, upright
    reader.video("clips/7.mp4")    # VideoFrames

    With a cache, nothing is decoded: what is not in it, or has changed since, is refused.
    """

    def __init__(self, budget: MediaBudget, decoder: Decoder = "auto", cache: MediaCache | None = None) -> None:
        if cache is not None and cache.budget != budget:
            raise ValueError("the cache was prepared under another budget")
        self.budget, self._decoder, self._cache = budget, decoder, cache

    def image(self, reference: str, sample_id: str | None = None) -> Image.Image:
        """An RGB picture.

        Raises:
            DataError: it cannot be decoded, or is not in the cache.
        """
        if self._cache is not None:
            return self._cache.image(reference, sample_id)
        return fit_image(load_image(reference, sample_id), self.budget.image)

    def video(self, reference: str, sample_id: str | None = None) -> VideoFrames:
        """The frames of a video.

        Raises:
            DataError: it cannot be decoded, or is not in the cache.
        """
        if self._cache is not None:
            return self._cache.video(reference, sample_id)
        return read_video(reference, self.budget.video, sample_id, self._decoder)
