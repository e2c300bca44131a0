"""Budgets of images and videos: number of frames and pixels, and the sizes that they imply.

`fit_image` resizes an image to its budget; frames are selected in `mmrl.data.media.video`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field

from PIL import Image

from mmrl.config.media import MediaConfig

_MAX_SIDE = 1_000_000  # pixels of an enlarged side; a larger one comes from a mistake in min_pixels


@dataclass(frozen=True)
class ImageBudget:
    """A budget of pixels (width x height) for one image."""

    min_pixels: int = 0  # a smaller image is enlarged to about this many; 0: never
    max_pixels: int = 1_003_520  # a larger image is reduced; 1280 patches of 28 x 28, as Qwen's model cards recommend

    def __post_init__(self) -> None:
        if not 0 <= self.min_pixels <= self.max_pixels or self.max_pixels < 1:
            raise ValueError(
                f"min_pixels is {self.min_pixels} and max_pixels {self.max_pixels}; "
                "expected 0 <= min_pixels <= max_pixels and max_pixels >= 1"
            )

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image is resized to; its aspect ratio is kept to within a pixel."""
        return _within(width, height, self.min_pixels, self.max_pixels)


@dataclass(frozen=True)
class VideoBudget:
    """A budget of frames of one video, of pixels of a frame, and of pixels of all frames."""

    fps: float = 2.0  # frames sampled per second, within min_frames and max_frames
    min_frames: int = 4  # of a short video; all frames if it has fewer
    max_frames: int = 64  # of a long video, evenly spaced from the first to the last
    max_pixels: int = 602_112  # width x height of one frame
    total_pixels: int = 19_267_584  # width x height x frames: the more frames, the smaller each

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps is {self.fps}; expected a number > 0")
        if not 1 <= self.min_frames <= self.max_frames:
            raise ValueError(
                f"min_frames is {self.min_frames} and max_frames {self.max_frames}; "
                "expected 1 <= min_frames <= max_frames"
            )
        if self.max_pixels < 1 or self.total_pixels < self.max_frames:
            raise ValueError(
                f"max_pixels is {self.max_pixels} and total_pixels {self.total_pixels}; "
                f"expected max_pixels >= 1 and total_pixels >= max_frames = {self.max_frames}"
            )

    def frames(self, total: int, rate: float) -> list[int]:
        """Return the indices of the sampled frames of a video of `total` frames at `rate` a second, in rising order.

        Their number is duration x fps, within the bounds; they are evenly spaced from the first frame to the last.
        """
        requested = round(total / rate * self.fps)
        n = min(max(requested, self.min_frames), self.max_frames, total)
        return [total // 2] if n == 1 else [round(i * (total - 1) / (n - 1)) for i in range(n)]

    def size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Return the width and height that each of `frames` frames is resized to."""
        return _within(width, height, 0, max(1, min(self.max_pixels, self.total_pixels // frames)))


@dataclass(frozen=True)
class MediaBudget:
    """The budgets of images and of videos of a run."""

    image: ImageBudget = field(default_factory=ImageBudget)
    video: VideoBudget = field(default_factory=VideoBudget)

    @classmethod
    def of(cls, config: MediaConfig) -> MediaBudget:
        """Return the budget that a configuration describes."""
        return cls(
            ImageBudget(config.image.min_pixels, config.image.max_pixels),
            VideoBudget(**config.video.model_dump(exclude={"decoder"})),
        )

    def digest(self) -> str:
        """Return a hash of all numbers, equal in every process; a cache of prepared media is keyed by it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def fit_image(image: Image.Image, budget: ImageBudget) -> Image.Image:
    """Return the image, resized to its budget."""
    return resized(image, budget.size(*image.size))


def resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the image resized with an antialiased bicubic filter; the image itself if it has the size."""
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def _within(width: int, height: int, least: int, most: int) -> tuple[int, int]:
    pixels = width * height
    if pixels > most:
        shrunk = math.sqrt(most / pixels)
        # An image of height 1 keeps its height, so only its width is reduced.
        new_width = min(max(1, math.floor(width * shrunk)), most)
        return new_width, max(1, min(math.floor(height * shrunk), most // new_width))
    if pixels < least:
        grown = math.sqrt(least / pixels)
        return min(math.ceil(width * grown), _MAX_SIDE), min(math.ceil(height * grown), _MAX_SIDE)
    return width, height
