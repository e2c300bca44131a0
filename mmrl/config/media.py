"""Pixel and frame budgets of the images and videos that a vision-language model takes, their decoder and cache."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from mmrl.config.section import Section


class ImageConfig(Section):
    """Pixels of one picture. The model's own processor may round the sides further."""

    min_pixels: NonNegativeInt = 0
    """A smaller picture is enlarged to about this many (width x height); 0: never."""
    max_pixels: PositiveInt = 1_003_520
    """A larger one is made smaller: 1280 patches of 28 x 28."""

    @model_validator(mode="after")
    def _in_order(self) -> ImageConfig:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels ({self.min_pixels}) at most max_pixels ({self.max_pixels})")
        return self


class VideoConfig(Section):
    """Frames of one video, and their pixels."""

    fps: PositiveFloat = 2.0
    """Frames taken from each second, between min_frames and max_frames in all."""
    min_frames: PositiveInt = 4
    max_frames: PositiveInt = 64
    """Taken evenly from the first frame to the last."""
    max_pixels: PositiveInt = 602_112
    """Width x height of one frame."""
    total_pixels: PositiveInt = 19_267_584
    """The pixels of all frames of a video together: the more frames, the smaller each."""
    decoder: Literal["auto", "decord", "pyav"] = "auto"
    """`auto`: decord where it is installed (Linux x86-64), PyAV elsewhere and for what decord cannot decode."""

    @model_validator(mode="after")
    def _in_order(self) -> VideoConfig:
        if self.min_frames > self.max_frames:
            raise ValueError(f"min_frames ({self.min_frames}) at most max_frames ({self.max_frames})")
        if self.total_pixels < self.max_frames:
            raise ValueError(f"total_pixels ({self.total_pixels}) at least max_frames ({self.max_frames})")
        return self


class MediaConfig(Section):
    """Budgets of pictures and of videos, apart."""

    image: ImageConfig = ImageConfig()
    video: VideoConfig = VideoConfig()
    on_error: Literal["fail", "exclude"] = "fail"
    """The action on a picture or video that cannot be decoded. `fail`: the run stops and names it, before training
    where opening the file shows it, else when it is read (`mmrl data check` decodes everything). `exclude`: all media
    are decoded once before training, and samples with bad ones are left out and named. None is swapped for another."""
    cache: Annotated[str, Field(min_length=1)] | None = None
    """A folder that `mmrl data prepare` wrote under this very budget; unset: media are decoded each time."""
