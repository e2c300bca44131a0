"""Pictures and videos from disk: decoded to the last pixel and turned upright, or refused by name.

Paths are local files: relative ones count from the folder of their data file (`with_media_in`), absolute ones are
taken as they are, since a local data set may name any file that its owner can read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from mmrl.data.conditions import Kind, holds_video, map_media
from mmrl.data.jsonl import DataError
from mmrl.data.sample import Sample

LATE = 0.9
"""A video whose last frame ends before this share of its stated duration was cut off."""

SHOWN = 5
"""Problems of a data set that are told at once."""

_BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning)


def with_media_in(sample: Sample, folder: Path | str) -> Sample:
    """The sample with its relative paths counted from `folder`."""
    folder = Path(folder)
    return replace(
        sample,
        images=tuple(str(folder / path) for path in sample.images),
        videos=tuple(str(folder / path) for path in sample.videos),
        mask=None if sample.mask is None else str(folder / sample.mask),
        conditions=map_media(sample.conditions, lambda _, path: str(folder / path)),
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
            _look(kind, Path(path), sample_id)
        except DataError as why:
            problems.append(str(why))

    for sample in samples:
        own = {"images": sample.images, "videos": sample.videos, "mask": sample.mask}
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
    return _decode(Path(path), sample_id).convert("RGBA" if alpha else "RGB")


def load_mask(path: Path | str, sample_id: str | None = None) -> Image.Image:
    """A picture of one channel ("L"), otherwise as `load_image`; white is what a mask selects."""
    return _decode(Path(path), sample_id).convert("L")


def load_video(path: Path | str, sample_id: str | None = None) -> list[Image.Image]:
    """All frames of a video's first stream of pictures, RGB and upright.

    Raises:
        DataError: there is no such file, it is no video, or it ends before it should.
    """
    import av  # here, so that data sets of text load no codecs

    path = Path(path)
    frames: list[Image.Image] = []
    end = 0.0
    with _refusals(path, sample_id, "video", (av.error.FFmpegError, OSError)), av.open(str(path)) as container:
        if not container.streams.video:
            raise _unusable(path, sample_id, "holds no stream of pictures")
        stream = container.streams.video[0]
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise _unusable(
                    path, sample_id, f"frame {len(frames)} is damaged: copy the file again, or leave it out"
                )
            frames.append(Image.fromarray(frame.to_ndarray(format="rgb24")).rotate(frame.rotation, expand=True))
            end = max(end, frame.time or 0.0)
        due = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
        rate = float(stream.average_rate or 0)
    if not frames:
        raise _unusable(path, sample_id, "holds no frames")
    if rate and end + 1 / rate < LATE * due:
        raise _unusable(path, sample_id, f"ends after {end:.1f} of {due:.1f} s: copy the file again, or leave it out")
    return frames


def _look(kind: Kind, path: Path, sample_id: str) -> None:
    if not path.is_file():
        raise _unusable(path, sample_id, "is a folder" if path.is_dir() else "there is no such file")
    if not holds_video(kind, str(path)):
        with _refusals(path, sample_id, "picture", _BROKEN), Image.open(path):
            pass


def _decode(path: Path, sample_id: str | None) -> Image.Image:
    with _refusals(path, sample_id, "picture", _BROKEN), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path) as opened:
            opened.load()
            image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I;16"):  # Pillow would clip them at 255
        return Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise _unusable(path, sample_id, "has 32 bits a pixel, whose range is not known: save it with 8 or 16")
    # A palette's transparency is lost on the direct way, with a warning
    return image.convert("RGBA") if image.mode == "P" else image


@contextmanager
def _refusals(path: Path, sample_id: str | None, kind: str, broken: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except broken as why:
        if not path.exists():
            raise _unusable(path, sample_id, "there is no such file") from None
        reason = str(why).replace(str(path), "").strip(" :'") or type(why).__name__
        raise _unusable(path, sample_id, f"cannot be read as a {kind} ({reason}): mend it, or leave it out") from None


def _unusable(path: Path, sample_id: str | None, problem: str) -> DataError:
    return DataError(f"{path}: {problem}" if sample_id is None else f"{path}: {problem} (sample {sample_id!r})")
