"""Decoding of images and videos: complete, upright, and with errors that name the file and the sample.

Paths are local files: relative ones are resolved against the folder of their data file (`with_media_in`), absolute ones
are used as they are, since a local data set may name any file that its owner can read. A data URI
(`data:image/png;base64,...`) is allowed wherever a path is.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from mmrl.data.media.sample_media import map_answer_images, map_media, map_screens
from mmrl.data.media.uris import describe_reference, is_data_uri, media_source
from mmrl.data.sample import Sample
from mmrl.errors import DataError

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer

MIN_DURATION_SHARE = 0.9
"""A video whose last frame ends before this share of its stated duration is truncated."""

_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF tag, and its values with width and height swapped
_CLOCK = re.compile(r"([0-9]+):([0-9]+):([0-9.]+)")
_IN_MEMORY = re.compile(r"<_io\.BytesIO object at 0x[0-9a-f]+>|<none>")
BROKEN: tuple[type[Exception], ...] = (
    OSError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


def with_media_in(sample: Sample, folder: Path | str) -> Sample:
    """Return the sample with its relative paths resolved against `folder`; data URIs are unchanged."""
    return _with_paths(sample, lambda path: str(Path(folder) / path))


def with_media_seen_from(sample: Sample, folder: Path | str) -> Sample:
    """Return the sample with its relative paths, which the working directory has, written relative to `folder`.

    In a file there, they name the same media. Absolute paths and data URIs are unchanged.
    """
    return _with_paths(sample, lambda path: path_seen_from(path, folder))


def path_seen_from(path: str, folder: Path | str) -> str:
    """Return a path relative to `folder` where it is relative to the working directory; others are unchanged."""
    if is_data_uri(path) or Path(path).is_absolute():
        return path
    return os.path.relpath(path, Path(folder).resolve())  # `..` leads up from where a link leads to


def _with_paths(sample: Sample, change: Callable[[str], str]) -> Sample:
    """Return the sample with `change` applied to the paths of its media."""

    def changed(path: str) -> str:
        return path if is_data_uri(path) else change(path)

    return replace(
        sample,
        images=tuple(map(changed, sample.images)),
        videos=tuple(map(changed, sample.videos)),
        mask=None if sample.mask is None else changed(sample.mask),
        conditions=map_media(sample.conditions, lambda _, path: changed(path)),
        metadata=map_screens(sample.metadata, changed),
        **map_answer_images(sample, changed),
    )


def load_image(path: Path | str, sample_id: str | None = None, alpha: bool = False) -> Image.Image:
    """Return an RGB image (RGBA with `alpha`), rotated by its EXIF orientation; 16 bits per channel are scaled to 8.

    Raises:
        DataError: the file does not exist, is not an image, is truncated, or is too large to open safely.
    """
    return _decode(path, sample_id).convert("RGBA" if alpha else "RGB")


def image_size(path: Path | str, sample_id: str | None = None) -> tuple[int, int]:
    """Return width and height of the image that `load_image` returns, from its header alone.

    Raises:
        DataError: the file does not exist, or is not an image.
    """
    with as_data_errors(path, sample_id, "picture", BROKEN), Image.open(media_source(path)) as picture:
        width, height = picture.size
        turned = picture.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE
    return (height, width) if turned else (width, height)


def load_mask(path: Path | str, sample_id: str | None = None) -> Image.Image:
    """Return an image of one channel ("L"), otherwise like `load_image`; a mask selects what is white."""
    return _decode(path, sample_id).convert("L")


def load_video(path: Path | str, sample_id: str | None = None) -> list[Image.Image]:
    """Return all frames of a video's first video stream, RGB and upright.

    Raises:
        DataError: the file does not exist, is not a video, or is truncated.
    """
    return [image for _, image, _ in upright_frames(path, sample_id)]


def upright_frames(
    path: Path | str, sample_id: str | None = None, selected: Container[int] | None = None
) -> Iterator[tuple[int, Image.Image, float]]:
    """Decode a video and yield (index, RGB image, seconds) of the frames with an index in `selected`; None: of all.

    Raises:
        DataError: see `load_video`; for a truncated video, after its last frame.
    """
    end, count = 0.0, 0
    with video_stream(path, sample_id) as (container, stream):
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise media_error(path, sample_id, f"frame {count} is damaged: copy the file again, or leave it out")
            if selected is None or count in selected:
                image = Image.fromarray(frame.to_ndarray(format="rgb24")).rotate(frame.rotation, expand=True)
                yield count, image, frame.time or 0.0
            end, count = max(end, frame.time or 0.0), count + 1
        stated, rate = stated_seconds(container, stream), float(stream.average_rate or 0)
    if not count:
        raise media_error(path, sample_id, "holds no frames")
    if rate:
        check_not_truncated(path, sample_id, end + 1 / rate, stated)


@contextmanager
def video_stream(path: Path | str, sample_id: str | None) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video and yield its container and first video stream; errors in the body too become `DataError`s."""
    import av  # imported here, so that data sets without videos load no codecs

    broken = (av.error.FFmpegError, OSError, ValueError)
    with as_data_errors(path, sample_id, "video", broken), av.open(media_source(path), "r") as container:
        if not container.streams.video:
            raise media_error(path, sample_id, "holds no stream of pictures")
        yield container, container.streams.video[0]


def stated_seconds(container: InputContainer, stream: VideoStream) -> float:
    """Return the duration that a video states; 0 if it states none."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    if clock := _CLOCK.fullmatch(stream.metadata.get("DURATION", "")):  # Matroska and WebM state it as text
        hours, minutes, seconds = map(float, clock.groups())
        return 3600 * hours + 60 * minutes + seconds
    only_stream = len(container.streams) == 1  # with several, the sound may be the longer one
    return (container.duration or 0) / 1e6 if only_stream else 0.0


def check_not_truncated(path: Path | str, sample_id: str | None, end: float, stated: float) -> None:
    """Raise `DataError` if a video of a stated duration (seconds) ends much earlier."""
    if end < MIN_DURATION_SHARE * stated:
        raise media_error(
            path, sample_id, f"ends after {end:.1f} of {stated:.1f} s: copy the file again, or leave it out"
        )


def _decode(path: Path | str, sample_id: str | None) -> Image.Image:
    with as_data_errors(path, sample_id, "picture", BROKEN), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(media_source(path)) as picture:
            picture.load()
            image = ImageOps.exif_transpose(picture)
    if image.mode.startswith("I;16"):  # Pillow would clip values at 255
        return Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise media_error(path, sample_id, "has 32 bits a pixel, whose range is not known: save it with 8 or 16")
    # Converted to RGB directly, a palette image would lose its transparency, with a warning.
    return image.convert("RGBA") if image.mode == "P" else image


@contextmanager
def as_data_errors(
    path: Path | str, sample_id: str | None, kind: str, broken: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Convert exceptions of a decoder (`broken`) to a DataError that names the file and the sample."""
    try:
        yield
    except DataError:
        raise
    except broken as err:
        if not is_data_uri(str(path)) and not Path(path).exists():
            raise media_error(path, sample_id, "there is no such file") from None
        reason = _IN_MEMORY.sub("", str(err).replace(str(path), "")).strip(" :'") or type(err).__name__
        is_large = isinstance(err, Image.DecompressionBombError | Image.DecompressionBombWarning)
        remedy = "save it with fewer pixels" if is_large else "repair it"
        raise media_error(
            path, sample_id, f"cannot be read as a {kind} ({reason}): {remedy}, or leave it out"
        ) from None


def media_error(path: Path | str, sample_id: str | None, problem: str) -> DataError:
    """Return the error that names a file, or the beginning of a data URI, and the sample."""
    problem = f"{describe_reference(path)}: {problem}"
    return DataError(problem if sample_id is None else f"{problem} (sample {sample_id!r})")
