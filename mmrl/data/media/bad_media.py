"""Pictures and videos that cannot be decoded, found before training by decoding everything once.

What is bad is reported by file and sample. A sample with bad media is left out or stops the run, as asked; another one
never takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mmrl.data.media.answer_media import answer_pictures
from mmrl.data.media.conditions import Kind, holds_video, map_media
from mmrl.data.media.decode import SHOWN, load_image, upright_frames
from mmrl.data.sample import Sample
from mmrl.errors import DataError

OnBad: TypeAlias = Literal["fail", "exclude"]
Medium: TypeAlias = Literal["image", "video"]
Look: TypeAlias = Callable[[Medium, str, str], None]
"""Raises DataError where a medium (what it is, path or data URI, id of a sample that has it) cannot be used."""


@dataclass(frozen=True)
class Kept:
    """What is left of a data set."""

    samples: tuple[Sample, ...]
    excluded: dict[str, tuple[str, ...]]  # {id of a sample that was left out: what is wrong with its media}

    def report(self) -> str:
        """One line for the first of what was left out; empty where nothing was."""
        if not self.excluded:
            return ""
        total = len(self.samples) + len(self.excluded)
        lines = [problem for problems in self.excluded.values() for problem in problems]
        more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join([f"{len(self.excluded)} of {total} samples are left out:", *lines[:SHOWN], *more])


def without_bad_media(samples: Sequence[Sample], on_error: OnBad, look: Look | None = None) -> Kept:
    """The samples whose media can all be used, in order.

    `look` says of one medium whether it can: by default it is decoded to the end; a cache of prepared media answers by
    what it holds (`MediaCache.look`).

    Raises:
        DataError: a medium is bad and `on_error` is "fail", or no sample is left.
    """
    problems = bad_media(samples, look or decode)
    if problems and on_error == "fail":
        lines = [problem for each in problems.values() for problem in each]
        more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        raise DataError("\n".join([*lines[:SHOWN], *more, "media.on_error=exclude leaves such samples out"]))
    kept = tuple(sample for sample in samples if sample.id not in problems)
    if samples and not kept:
        raise DataError(
            f"no sample is left: all {len(samples)} have bad media, the first {next(iter(problems.values()))[0]}"
        )
    return Kept(kept, problems)


def bad_media(samples: Sequence[Sample], look: Look) -> dict[str, tuple[str, ...]]:
    """{id of a sample: what is wrong with its media}, in the order of the samples; each medium is looked at once."""
    first_user: dict[tuple[Medium, str], str] = {}
    for sample in samples:
        for medium in media_of(sample):
            first_user.setdefault(medium, sample.id)

    def problem(medium: tuple[Medium, str]) -> str | None:
        try:
            look(*medium, first_user[medium])
        except DataError as err:
            return str(err)
        return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:  # decoders let go of Python's lock
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
    """Every picture (masks too) and video of a sample, as paths or data URIs."""
    yield from (("image", reference) for reference in (*sample.images, *answer_pictures(sample)))
    yield from (("video", reference) for reference in sample.videos)
    found: list[tuple[Medium, str]] = []

    def add(kind: Kind, reference: str) -> None:
        found.append(("video" if holds_video(kind, reference) else "image", reference))

    map_media({"mask": sample.mask} | dict(sample.conditions), add)
    yield from found


def decode(medium: Medium, reference: str, sample_id: str) -> None:
    """Decode a medium to the end, by the decoders that notice damage.

    Raises:
        DataError: it is missing, is none, is damaged or was cut off.
    """
    if medium == "image":
        load_image(reference, sample_id, alpha=True)
        return
    for _ in upright_frames(reference, sample_id, wanted=frozenset()):
        pass


def _of_sample(problem: str, told_for: str, sample_id: str) -> str:
    return problem.replace(f"(sample {told_for!r})", f"(sample {sample_id!r})")
