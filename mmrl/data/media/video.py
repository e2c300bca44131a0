"""Frames out of a video, as many as a budget allows, by decord or by PyAV.

decord is there on Linux x86-64 alone; PyAV decodes everywhere, and what decord does not take: GIFs, and whatever it
fails at (frames 48 pixels wide, for one). Both give the same frames to the bit (8 bits a channel; of 10-bit videos they
round colours differently). PyAV also notices frames that are damaged and concealed: `mmrl data check` and
`mmrl data prepare` decode by it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.budget import VideoBudget, resized
from mmrl.data.media.decode import refusals, refuse_cut_off, stated_seconds, unusable, upright_frames
from mmrl.data.media.uris import is_data_uri, opened, shown, uri_kind

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer

log = logging.getLogger(__name__)

Decoder: TypeAlias = Literal["auto", "decord", "pyav"]
Picked: TypeAlias = tuple[list[Image.Image], list[int], list[float], float, int]
"""Frames, their indices and seconds, the video's own rate, and how many frames it has."""

_MOST_FRAMES = 10_000_000  # above this a frame count is a broken header


@dataclass(frozen=True)
class VideoFrames:
    """What a model is shown of a video."""

    frames: NDArray[np.uint8]  # [T, H, W, 3] RGB, upright
    timestamps: NDArray[np.float64]  # [T] seconds from the start, to the millisecond
    indices: tuple[int, ...]  # [T] which of the video's frames
    fps: float  # of these frames: T a duration
    source_fps: float  # of the video
    source_frames: int  # of the video

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of each frame."""
        return self.frames.shape[2], self.frames.shape[1]

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.source_frames / self.source_fps


@dataclass(frozen=True)
class _Header:
    frames: int  # by the container's packets, of which some hold no frame of their own
    rate: float
    start: float  # second of the first frame


def read_video(
    reference: Path | str, budget: VideoBudget, sample_id: str | None = None, decoder: Decoder = "auto"
) -> VideoFrames:
    """The frames of a file or data URI that the budget allows.

    Raises:
        DataError: there is no such file, it is no video, it is cut off, or `decoder` cannot decode it.
    """
    if decoder not in get_args(Decoder):
        raise ValueError(f"decoder is {decoder!r}; it is one of {', '.join(get_args(Decoder))}")
    way = chosen_decoder() if decoder == "auto" else decoder
    picked = None
    if way == "decord" and not (decoder == "auto" and _is_gif(reference)):
        picked = _by_decord(reference, budget, sample_id, may_fail=decoder == "auto")
    images, indices, seconds, rate, total = picked or _by_pyav(reference, budget, sample_id)
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
def chosen_decoder() -> Literal["decord", "pyav"]:
    """What `auto` means on this machine; told once in the log."""
    try:
        import decord  # noqa: F401  # its library may be there and not load

        log.info("videos are decoded by decord %s, and GIFs by PyAV %s", version("decord"), version("av"))
        return "decord"
    except (ImportError, OSError, PackageNotFoundError) as err:
        log.info("videos are decoded by PyAV %s, as decord is not here (%s)", version("av"), err)
        return "pyav"


def _by_decord(reference: Path | str, budget: VideoBudget, sample_id: str | None, may_fail: bool) -> Picked | None:
    """None: it failed and may; PyAV then says what is wrong, or reads what decord does not."""
    from decord import DECORDError, VideoReader, cpu, logging, nd

    logging.set_level(logging.QUIET)
    if not is_data_uri(str(reference)) and not Path(reference).is_file():
        raise unusable(reference, sample_id, "there is no such file")
    try:
        with refusals(reference, sample_id, "video", (ValueError, OSError)):
            source = opened(reference)
        reader = VideoReader(str(source) if isinstance(source, Path) else source, ctx=cpu(0), num_threads=1)
        total, rate = len(reader), float(reader.get_avg_fps())
        if not 0 < total < _MOST_FRAMES or not rate > 0:
            raise DECORDError(f"{total} frames at {rate} a second")
        indices = budget.frames(total, rate)
        batch = reader.get_batch(indices)
        seconds = reader.get_frame_timestamp(indices)[:, 0].tolist()
    except (DECORDError, RuntimeError) as err:
        if not may_fail:
            raise unusable(reference, sample_id, f"decord cannot decode it: {_first_line(err)}") from None
        log.info("%s: decord cannot decode it, PyAV tries", shown(reference))
        return None
    refuse_cut_off(reference, sample_id, total / rate, stated_duration(reference, sample_id))
    frames: Any = batch.asnumpy() if isinstance(batch, nd.NDArray) else batch  # a bridge may have been set elsewhere
    return [Image.fromarray(np.asarray(frame)) for frame in frames], indices, seconds, rate, total


def _by_pyav(reference: Path | str, budget: VideoBudget, sample_id: str | None) -> Picked:
    header = _header(reference, sample_id)
    total, rate = header.frames, header.rate
    indices = budget.frames(total, rate)
    kept = list(upright_frames(reference, sample_id, frozenset(indices)))
    if len(kept) < len(indices):  # some packets hold no frame of their own: count what is decoded, and choose again
        decoded = sum(1 for _ in upright_frames(reference, sample_id))
        total, rate = decoded, rate * decoded / total
        indices = budget.frames(total, rate)
        kept = list(upright_frames(reference, sample_id, frozenset(indices)))
    return [image for _, image, _ in kept], indices, [second - header.start for _, _, second in kept], rate, total


@contextmanager
def _video_stream(reference: Path | str, sample_id: str | None) -> Iterator[tuple[InputContainer, VideoStream]]:
    import av

    with (
        refusals(reference, sample_id, "video", (av.error.FFmpegError, OSError, ValueError)),
        av.open(opened(reference), "r") as container,
    ):
        if not container.streams.video:
            raise unusable(reference, sample_id, "holds no stream of pictures")
        yield container, container.streams.video[0]


def stated_duration(reference: Path | str, sample_id: str | None = None) -> float:
    """Seconds that a video says it lasts, by its header; 0: it does not.

    Raises:
        DataError: there is no such file, or it is no video.
    """
    with _video_stream(reference, sample_id) as (container, stream):
        return stated_seconds(container, stream)


def _header(reference: Path | str, sample_id: str | None) -> _Header:
    """What the container's packets say of the video; nothing is decoded."""
    with _video_stream(reference, sample_id) as (container, stream):
        rate, unit = float(stream.average_rate or 0), stream.time_base or 0
        if not rate > 0:
            raise unusable(reference, sample_id, "does not say how many frames a second it has")
        times = [packet.pts for packet in container.demux(stream) if packet.size]
    if not times:
        raise unusable(reference, sample_id, "holds no frames")
    return _Header(len(times), rate, float(min(time or 0 for time in times) * unit))


def _is_gif(reference: Path | str) -> bool:
    text = str(reference)
    if is_data_uri(text):
        return uri_kind(text) == "image/gif"
    return text.lower().endswith(".gif")


def _first_line(why: Exception) -> str:
    return (str(why).splitlines() or [type(why).__name__])[0][:200]
