"""Search for images and videos that cannot be used, before training: by opening the files, or by decoding everything.

Problems are reported by file and sample. A sample with bad media stops the run or is excluded; it is never replaced by
another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from mmrl.data.media.decode import BROKEN, as_data_errors, load_image, media_error, upright_frames
from mmrl.data.media.sample_media import Medium, is_video, media_of
from mmrl.data.media.uris import is_data_uri, media_source
from mmrl.data.sample import Sample
from mmrl.errors import DataError

MediaCheck: TypeAlias = Callable[[Medium, str, str], None]
"""Raises DataError if a medium (its kind, its path or data URI, the id of a sample that uses it) cannot be used."""

MAX_LISTED = 5
"""Number of problems that a message lists."""


@dataclass(frozen=True)
class UsableSamples:
    """The samples of a data set whose media can be used, and the excluded ones."""

    samples: tuple[Sample, ...]
    excluded: dict[str, tuple[str, ...]]  # {id of an excluded sample: the problems of its media}

    def report(self) -> str:
        """Return a message with the first problems; empty if no sample was excluded."""
        if not self.excluded:
            return ""
        total = len(self.samples) + len(self.excluded)
        return f"{len(self.excluded)} of {total} samples are left out:\n{_listed(self.excluded)}"


def check_media_files(samples: Sequence[Sample]) -> None:
    """Check that all media of the samples exist and that images can be opened, before training.

    Images are opened but not decoded, which takes microseconds. One with too many pixels is found now, a truncated one
    when it is used.

    Raises:
        DataError: files cannot be used; the message has one line for each of the first ones.
    """
    if problems := find_bad_media(samples, _check_file):
        raise DataError(_listed(problems))


def exclude_bad_media(samples: Sequence[Sample], check: MediaCheck | None = None) -> UsableSamples:
    """Return the samples whose media can all be used, in order.

    `check` tests one medium: by default it is decoded to the end; `MediaCache.check` looks it up in a cache.

    Raises:
        DataError: no sample is left.
    """
    problems = find_bad_media(samples, check or decode)
    kept = tuple(sample for sample in samples if sample.id not in problems)
    if samples and not kept:
        raise DataError(
            f"no sample is left: all {len(samples)} have bad media, the first {next(iter(problems.values()))[0]}"
        )
    return UsableSamples(kept, problems)


def find_bad_media(samples: Sequence[Sample], check: MediaCheck) -> dict[str, tuple[str, ...]]:
    """Return {id of a sample: problems of its media}, in the order of the samples; each medium is checked once."""
    first_user: dict[tuple[Medium, str], str] = {}
    for sample in samples:
        for medium in media_of(sample):
            first_user.setdefault(medium, sample.id)

    def problem(medium: tuple[Medium, str]) -> str | None:
        try:
            check(*medium, first_user[medium])
        except DataError as err:
            return str(err)
        return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:  # decoders release the GIL
        problems = dict(zip(first_user, threads.map(problem, first_user), strict=True))
    by_sample: dict[str, tuple[str, ...]] = {}
    for sample in samples:
        own = [
            _of_sample(text, first_user[medium], sample.id) for medium in media_of(sample) if (text := problems[medium])
        ]
        if own:
            by_sample[sample.id] = tuple(dict.fromkeys(own))
    return by_sample


def decode(medium: Medium, reference: str, sample_id: str) -> None:
    """Decode a medium to the end, with decoders that detect damage.

    Raises:
        DataError: it is missing, not an image or video, damaged or truncated.
    """
    if medium == "image":
        load_image(reference, sample_id, alpha=True)
        return
    for _ in upright_frames(reference, sample_id, selected=frozenset()):
        pass


def _check_file(medium: Medium, reference: str, sample_id: str) -> None:
    if not is_data_uri(reference) and not Path(reference).is_file():
        problem = "is a folder" if Path(reference).is_dir() else "there is no such file"
        raise media_error(reference, sample_id, problem)
    if not is_video(medium, reference):
        with as_data_errors(reference, sample_id, "picture", BROKEN), Image.open(media_source(reference)) as picture:
            pixels, most = picture.width * picture.height, Image.MAX_IMAGE_PIXELS
        if most is not None and pixels > most:  # decoding it would raise, in the middle of training
            problem = f"has {pixels:,} pixels, more than the {most:,} that are safe to decode: "
            raise media_error(reference, sample_id, problem + "save it with fewer pixels, or leave it out")


def _listed(problems: dict[str, tuple[str, ...]]) -> str:
    lines = [problem for each in problems.values() for problem in each]
    more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n".join([*lines[:MAX_LISTED], *more])


def _of_sample(problem: str, first_user: str, sample_id: str) -> str:
    return problem.replace(f"(sample {first_user!r})", f"(sample {sample_id!r})")
