"""Sampled frames of a video within a budget, decoded by decord or PyAV.

decord is available on Linux x86-64 only. PyAV is available everywhere and also decodes GIFs and the videos at which
decord fails (for example, frames 48 pixels wide). Both return bit-identical frames for 8 bits per channel; colours of
10-bit videos are rounded differently. PyAV also detects damaged frames that decoders conceal: `mmrl data check` and
`mmrl data prepare` use it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.budget import VideoBudget, resized
from mmrl.data.media.decode import (
    as_data_errors,
    check_not_truncated,
    media_error,
    stated_seconds,
    upright_frames,
    video_stream,
)
from mmrl.data.media.uris import describe_reference, is_data_uri, media_source, uri_kind

log = logging.getLogger(__name__)

Decoder: TypeAlias = Literal["auto", "decord", "pyav"]
SampledFrames: TypeAlias = tuple[list[Image.Image], list[int], list[float], float, int]
"""Frames, their indices and times in seconds, and the frame rate and number of frames of the video."""

_MAX_FRAMES = 10_000_000  # a larger frame count comes from a broken header


@dataclass(frozen=True)
class VideoFrames:
    """The sampled frames of a video, with their times."""

    frames: NDArray[np.uint8]  # [T, H, W, 3] RGB, upright
    timestamps: NDArray[np.float64]  # [T] seconds from the start, to the millisecond
    indices: tuple[int, ...]  # [T]; their indices in the video
    fps: float  # sampled frames per second: T / duration
    source_fps: float  # frames per second of the video
    source_frames: int  # number of frames of the video

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of each frame."""
        return self.frames.shape[2], self.frames.shape[1]

    @property
    def duration(self) -> float:
        """The duration of the video in seconds."""
        return self.source_frames / self.source_fps


@dataclass(frozen=True)
class _Header:
    frames: int  # packets of the container, some of which contain no frame
    rate: float
    start: float  # seconds, of the first frame


def read_video(
    reference: Path | str, budget: VideoBudget, sample_id: str | None = None, decoder: Decoder = "auto"
) -> VideoFrames:
    """Return the frames of a file or data URI that the budget selects.

    Raises:
        DataError: the file does not exist, is not a video, is truncated, or `decoder` cannot decode it.
    """
    if decoder not in get_args(Decoder):
        raise ValueError(f"decoder is {decoder!r}; it is one of {', '.join(get_args(Decoder))}")
    used = default_decoder() if decoder == "auto" else decoder
    sampled = None
    if used == "decord" and not (decoder == "auto" and _is_gif(reference)):
        sampled = _by_decord(reference, budget, sample_id, may_fail=decoder == "auto")
    images, indices, seconds, rate, total = sampled or _by_pyav(reference, budget, sample_id)
    size = budget.size(*images[0].size, len(images))
    return VideoFrames(
        frames=np.stack([np.asarray(resized(image, size)) for image in images]),
        timestamps=np.array([round(second, 3) for second in seconds], np.float64),
        indices=tuple(indices),
        fps=len(images) * rate / total,
        source_fps=rate,
        source_frames=total,
    )


@cache
def default_decoder() -> Literal["decord", "pyav"]:
    """Return the decoder that `auto` stands for on this machine, and log it once."""
    try:
        import decord  # noqa: F401  # the package may be installed and its library not loadable

        log.info("videos are decoded by decord %s, and GIFs by PyAV %s", version("decord"), version("av"))
        return "decord"
    except (ImportError, OSError, PackageNotFoundError) as err:
        log.info("videos are decoded by PyAV %s, as decord is not available (%s)", version("av"), err)
        return "pyav"


def _by_decord(
    reference: Path | str, budget: VideoBudget, sample_id: str | None, may_fail: bool
) -> SampledFrames | None:
    """Return the sampled frames, or None if decord fails and `may_fail`: PyAV then decodes, or reports the problem."""
    from decord import DECORDError, VideoReader, cpu, logging, nd

    logging.set_level(logging.QUIET)
    if not is_data_uri(str(reference)) and not Path(reference).is_file():
        raise media_error(reference, sample_id, "there is no such file")
    try:
        with as_data_errors(reference, sample_id, "video", (ValueError, OSError)):
            source = media_source(reference)
        reader = VideoReader(str(source) if isinstance(source, Path) else source, ctx=cpu(0), num_threads=1)
        total, rate = len(reader), float(reader.get_avg_fps())
        if not 0 < total < _MAX_FRAMES or not rate > 0:
            raise DECORDError(f"{total} frames at {rate} a second")
        indices = budget.frames(total, rate)
        batch = reader.get_batch(indices)
        seconds = reader.get_frame_timestamp(indices)[:, 0].tolist()
    except (DECORDError, RuntimeError) as err:
        if not may_fail:
            raise media_error(reference, sample_id, f"decord cannot decode it: {_first_line(err)}") from None
        log.info("%s: decord cannot decode it, PyAV tries", describe_reference(reference))
        return None
    check_not_truncated(reference, sample_id, total / rate, stated_duration(reference, sample_id))
    frames: Any = batch.asnumpy() if isinstance(batch, nd.NDArray) else batch  # another library may have set a bridge
    return [Image.fromarray(np.asarray(frame)) for frame in frames], indices, seconds, rate, total


def _by_pyav(reference: Path | str, budget: VideoBudget, sample_id: str | None) -> SampledFrames:
    header = _header(reference, sample_id)
    total, rate = header.frames, header.rate
    indices = budget.frames(total, rate)
    kept = list(upright_frames(reference, sample_id, frozenset(indices)))
    if len(kept) < len(indices):  # some packets contain no frame: count decoded ones, and sample again
        decoded = sum(1 for _ in upright_frames(reference, sample_id))
        total, rate = decoded, rate * decoded / total
        indices = budget.frames(total, rate)
        kept = list(upright_frames(reference, sample_id, frozenset(indices)))
    return [image for _, image, _ in kept], indices, [second - header.start for _, _, second in kept], rate, total


def stated_duration(reference: Path | str, sample_id: str | None = None) -> float:
    """Return the duration in seconds that a video's header states; 0 if it states none.

    Raises:
        DataError: the file does not exist, or is not a video.
    """
    with video_stream(reference, sample_id) as (container, stream):
        return stated_seconds(container, stream)


def _header(reference: Path | str, sample_id: str | None) -> _Header:
    """Return frame count, rate and start from the container's packets; nothing is decoded."""
    with video_stream(reference, sample_id) as (container, stream):
        rate, unit = float(stream.average_rate or 0), stream.time_base or 0
        if not rate > 0:
            raise media_error(reference, sample_id, "does not say how many frames a second it has")
        times = [packet.pts for packet in container.demux(stream) if packet.size]
    if not times:
        raise media_error(reference, sample_id, "holds no frames")
    return _Header(len(times), rate, float(min(time or 0 for time in times) * unit))


def _is_gif(reference: Path | str) -> bool:
    text = str(reference)
    if is_data_uri(text):
        return uri_kind(text) == "image/gif"
    return text.lower().endswith(".gif")


def _first_line(err: Exception) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0][:200]
