"""Search for images and videos that cannot be decoded, before training, by decoding everything once.

Problems are reported by file and sample. A sample with bad media stops the run or is excluded; it is never replaced by
another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mmrl.data.media.decode import MAX_LISTED, load_image, upright_frames
from mmrl.data.media.sample_media import MediaKind, images_of_answers, is_video, map_media
from mmrl.data.sample import Sample
from mmrl.errors import DataError

Medium: TypeAlias = Literal["image", "video"]
MediaCheck: TypeAlias = Callable[[Medium, str, str], None]
"""Raises DataError if a medium (its kind, its path or data URI, the id of a sample that uses it) cannot be used."""


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
        lines = [problem for problems in self.excluded.values() for problem in problems]
        more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
        return "\n".join([f"{len(self.excluded)} of {total} samples are left out:", *lines[:MAX_LISTED], *more])


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


def media_of(sample: Sample) -> Iterator[tuple[Medium, str]]:
    """Yield every image, mask and video of a sample, as (kind, path or data URI)."""
    yield from (("image", reference) for reference in (*sample.images, *images_of_answers(sample)))
    yield from (("video", reference) for reference in sample.videos)
    found: list[tuple[Medium, str]] = []

    def add(kind: MediaKind, reference: str) -> None:
        found.append(("video" if is_video(kind, reference) else "image", reference))

    map_media({"mask": sample.mask} | dict(sample.conditions), add)
    yield from found


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


def _of_sample(problem: str, first_user: str, sample_id: str) -> str:
    return problem.replace(f"(sample {first_user!r})", f"(sample {sample_id!r})")
