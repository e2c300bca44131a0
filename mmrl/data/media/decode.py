"""Pictures and videos from disk: decoded to the last pixel and turned upright, or refused by name.

Paths are local files: relative ones count from the folder of their data file (`with_media_in`), absolute ones are
taken as they are, since a local data set may name any file that its owner can read. A data URI
(`data:image/png;base64,...`) may stand wherever a path may.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from mmrl.data.media.answer_media import answer_pictures, with_pictures
from mmrl.data.media.conditions import Kind, holds_video, map_media
from mmrl.data.media.uris import is_data_uri, opened, shown
from mmrl.data.sample import Sample
from mmrl.errors import DataError

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer

LATE = 0.9
"""A video whose last frame ends before this share of its stated duration was cut off."""

SHOWN = 5
"""Problems of a data set that are told at once."""

_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of EXIF
_CLOCK = re.compile(r"([0-9]+):([0-9]+):([0-9.]+)")
_IN_MEMORY = re.compile(r"<_io\.BytesIO object at 0x[0-9a-f]+>|<none>")
_Errors: TypeAlias = tuple[type[Exception], ...]
_BROKEN: _Errors = (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning)


def with_media_in(sample: Sample, folder: Path | str) -> Sample:
    """The sample with its relative paths counted from `folder`; data URIs stay as they are."""

    def found(path: str) -> str:
        return path if is_data_uri(path) else str(Path(folder) / path)

    return replace(
        sample,
        images=tuple(map(found, sample.images)),
        videos=tuple(map(found, sample.videos)),
        mask=None if sample.mask is None else found(sample.mask),
        conditions=map_media(sample.conditions, lambda _, path: found(path)),
        **with_pictures(sample, found),
    )


def refuse_unreadable(samples: Iterable[Sample]) -> None:
    """Find pictures and videos that are not there or are none, before training meets them.

    Pictures are opened and not decoded, which takes microseconds: one that is cut off is found when it is used.

    Raises:
        DataError: one line for each of the first files that cannot be used.
    """
    problems: list[str] = []

    def look(kind: Kind, path: str, sample_id: str) -> None:
        try:
            _look(kind, path, sample_id)
        except DataError as err:
            problems.append(str(err))

    for sample in samples:
        answers = list(answer_pictures(sample))
        own = {"images": [*sample.images, *answers], "videos": sample.videos, "mask": sample.mask}
        for media in (own, sample.conditions):
            map_media(media, partial(look, sample_id=sample.id))
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise DataError("\n".join([*problems[:SHOWN], *more]))


def load_image(path: Path | str, sample_id: str | None = None, alpha: bool = False) -> Image.Image:
    """An RGB picture (RGBA with `alpha`), upright as its EXIF orientation says; 16 bits a pixel are scaled to 8.

    Raises:
        DataError: there is no such file, it is no picture, it is cut off, or it is too large to open safely.
    """
    return _decode(path, sample_id).convert("RGBA" if alpha else "RGB")


def picture_size(path: Path | str, sample_id: str | None = None) -> tuple[int, int]:
    """Width and height of a picture as `load_image` gives it, from its header alone.

    Raises:
        DataError: there is no such file, or it is no picture.
    """
    with refusals(path, sample_id, "picture", _BROKEN), Image.open(opened(path)) as picture:
        width, height = picture.size
        turned = picture.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE
    return (height, width) if turned else (width, height)


def load_mask(path: Path | str, sample_id: str | None = None) -> Image.Image:
    """A picture of one channel ("L"), otherwise as `load_image`; white is what a mask selects."""
    return _decode(path, sample_id).convert("L")


def load_video(path: Path | str, sample_id: str | None = None) -> list[Image.Image]:
    """All frames of a video's first stream of pictures, RGB and upright.

    Raises:
        DataError: there is no such file, it is no video, or it ends before it should.
    """
    return [image for _, image, _ in upright_frames(path, sample_id)]


def upright_frames(
    path: Path | str, sample_id: str | None = None, wanted: Container[int] | None = None
) -> Iterator[tuple[int, Image.Image, float]]:
    """Index, RGB picture and seconds of one frame after the other, decoding all and giving those that are `wanted`.

    Raises:
        DataError: as `load_video`, after the last frame where the video ends before it should.
    """
    import av  # here, so that data sets of text load no codecs

    end, count = 0.0, 0
    broken = (av.error.FFmpegError, OSError, ValueError)
    with refusals(path, sample_id, "video", broken), av.open(opened(path), "r") as container:
        if not container.streams.video:
            raise unusable(path, sample_id, "holds no stream of pictures")
        stream = container.streams.video[0]
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise unusable(path, sample_id, f"frame {count} is damaged: copy the file again, or leave it out")
            if wanted is None or count in wanted:
                image = Image.fromarray(frame.to_ndarray(format="rgb24")).rotate(frame.rotation, expand=True)
                yield count, image, frame.time or 0.0
            end, count = max(end, frame.time or 0.0), count + 1
        due, rate = stated_seconds(container, stream), float(stream.average_rate or 0)
    if not count:
        raise unusable(path, sample_id, "holds no frames")
    if rate:
        refuse_cut_off(path, sample_id, end + 1 / rate, due)


def stated_seconds(container: InputContainer, stream: VideoStream) -> float:
    """How long a video says that it is; 0 where it does not."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    if clock := _CLOCK.fullmatch(stream.metadata.get("DURATION", "")):  # Matroska and WebM state it as text
        hours, minutes, seconds = map(float, clock.groups())
        return 3600 * hours + 60 * minutes + seconds
    alone = len(container.streams) == 1  # or it may be the sound that is longer
    return (container.duration or 0) / 1e6 if alone else 0.0


def refuse_cut_off(path: Path | str, sample_id: str | None, end: float, due: float) -> None:
    """Raise where a video that should last `due` seconds ends much earlier."""
    if end < LATE * due:
        raise unusable(path, sample_id, f"ends after {end:.1f} of {due:.1f} s: copy the file again, or leave it out")


def _look(kind: Kind, path: str, sample_id: str) -> None:
    if not is_data_uri(path) and not Path(path).is_file():
        raise unusable(path, sample_id, "is a folder" if Path(path).is_dir() else "there is no such file")
    if not holds_video(kind, path):
        with refusals(path, sample_id, "picture", _BROKEN), Image.open(opened(path)):
            pass


def _decode(path: Path | str, sample_id: str | None) -> Image.Image:
    with refusals(path, sample_id, "picture", _BROKEN), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(opened(path)) as picture:
            picture.load()
            image = ImageOps.exif_transpose(picture)
    if image.mode.startswith("I;16"):  # Pillow would clip them at 255
        return Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise unusable(path, sample_id, "has 32 bits a pixel, whose range is not known: save it with 8 or 16")
    # A palette's transparency is lost on the direct way, with a warning
    return image.convert("RGBA") if image.mode == "P" else image


@contextmanager
def refusals(path: Path | str, sample_id: str | None, kind: str, broken: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a decoder raises (`broken`) into a DataError that names the file and the sample."""
    try:
        yield
    except DataError:
        raise
    except broken as err:
        if not is_data_uri(str(path)) and not Path(path).exists():
            raise unusable(path, sample_id, "there is no such file") from None
        reason = _IN_MEMORY.sub("", str(err).replace(str(path), "")).strip(" :'") or type(err).__name__
        raise unusable(path, sample_id, f"cannot be read as a {kind} ({reason}): mend it, or leave it out") from None


def unusable(path: Path | str, sample_id: str | None, problem: str) -> DataError:
    """The error that names a file, or the beginning of a data URI, and the sample."""
    problem = f"{shown(path)}: {problem}"
    return DataError(problem if sample_id is None else f"{problem} (sample {sample_id!r})")
