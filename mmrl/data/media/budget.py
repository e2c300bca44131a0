"""How much of a picture or video a model is shown: pixels and frames, apart for the two.

The arithmetic alone; pictures are resized by `fit_image`, frames are chosen in `mmrl.data.media.video`.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field

from PIL import Image

_FINEST = 1_000_000  # pixels that a side may grow to: beyond lies a mistake in min_pixels


@dataclass(frozen=True)
class ImageBudget:
    """Pixels (width x height) of one picture."""

    min_pixels: int = 0
    """A smaller picture is enlarged to about this many; 0: never."""
    max_pixels: int = 1_003_520
    """A larger one is made smaller. The default is 1280 patches of 28 x 28, as Qwen's model cards advise."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_pixels <= self.max_pixels or self.max_pixels < 1:
            raise ValueError(
                f"min_pixels is {self.min_pixels} and max_pixels {self.max_pixels}; "
                "0 <= min_pixels <= max_pixels and max_pixels >= 1 are due"
            )

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that a picture is resized to: the sides keep their ratio, to within a pixel."""
        return _within(width, height, self.min_pixels, self.max_pixels)


@dataclass(frozen=True)
class VideoBudget:
    """Frames of one video, and pixels of each and of all."""

    fps: float = 2.0
    """Frames taken from each second, as far as the bounds allow."""
    min_frames: int = 4
    """A shorter video gives this many, or all that it has."""
    max_frames: int = 64
    """A longer one gives this many, spread evenly from the first frame to the last."""
    max_pixels: int = 602_112
    """Width x height of one frame."""
    total_pixels: int = 19_267_584
    """Of all frames together: the more frames, the smaller each."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps is {self.fps}; a number above 0 is due")
        if not 1 <= self.min_frames <= self.max_frames:
            raise ValueError(
                f"min_frames is {self.min_frames} and max_frames {self.max_frames}; "
                "1 <= min_frames <= max_frames is due"
            )
        if self.max_pixels < 1 or self.total_pixels < self.max_frames:
            raise ValueError(
                f"max_pixels is {self.max_pixels} and total_pixels {self.total_pixels}; "
                f"at least 1 is due, and 1 for each of {self.max_frames} frames"
            )

    def frames(self, total: int, rate: float) -> list[int]:
        """Which of a video's `total` frames are taken, in rising order.

        duration x fps of them, within the bounds, evenly from the first to the last. `rate` is the video's own frames
        a second.
        """
        asked = round(total / rate * self.fps)
        n = min(max(asked, self.min_frames), self.max_frames, total)
        return [total // 2] if n == 1 else [round(i * (total - 1) / (n - 1)) for i in range(n)]

    def size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Width and height of each of so many frames."""
        return _within(width, height, 0, max(1, min(self.max_pixels, self.total_pixels // frames)))


@dataclass(frozen=True)
class MediaBudget:
    """What a run shows its model of pictures and of videos."""

    image: ImageBudget = field(default_factory=ImageBudget)
    video: VideoBudget = field(default_factory=VideoBudget)

    def digest(self) -> str:
        """Of every number in it, equal in any process: media prepared under another budget have another digest."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def fit_image(image: Image.Image, budget: ImageBudget) -> Image.Image:
    """The picture, resized where the budget asks for it."""
    return resized(image, budget.size(*image.size))


def resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Bicubic and antialiased; the picture itself where it has the size."""
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def _within(width: int, height: int, least: int, most: int) -> tuple[int, int]:
    pixels = width * height
    if pixels > most:
        shrunk = math.sqrt(most / pixels)
        # A strip of one pixel's height keeps it, so its width alone has to give way.
        new_width = min(max(1, math.floor(width * shrunk)), most)
        return new_width, max(1, min(math.floor(height * shrunk), most // new_width))
    if pixels < least:
        grown = math.sqrt(least / pixels)
        return min(math.ceil(width * grown), _FINEST), min(math.ceil(height * grown), _FINEST)
    return width, height
