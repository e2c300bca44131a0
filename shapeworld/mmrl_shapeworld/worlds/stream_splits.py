"""Data sets of streams, their expert, and the traces of a careless annotator.

`shapeworld:stream-train`, `-development`, `-validation`, and `-ood`, where the thing in the question has an unseen
colour: the clips arrive one after another, and the question last. `shapeworld:stream-whole-train` and so on have the
same streams with all clips and the question at once, and the same ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.canvas import gif_uri
from mmrl_shapeworld.vqa.questions import MOVES, slip
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.stream_clips import CLIPS, LETTERS, Stream, frames_of, sample_stream
from mmrl_shapeworld.worlds.stream_environment import StreamEpisode

SIZES = {"train": 1200, "development": 256, "validation": 512, "ood": 512}
"""Streams of each split. Settings are chosen on `development`; `validation` and `ood` are for results."""
WATCH = "Watch."
"""The prompt of a stream whose question comes last."""
_WHOLE = "stream-whole-"
NAMES = (*(f"stream-{part}" for part in SIZES), *(f"{_WHOLE}{part}" for part in SIZES))
RIGHT = 0.75
"""The probability that the annotator notes the right way."""
_SEED = 89

Annotator = Callable[[StreamEpisode], str]


@cache
def streams(split: str) -> tuple[Stream, ...]:
    """Return the streams of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of streams: choose one of {', '.join(NAMES)}")
    if split.startswith(_WHOLE):
        return streams(split.replace(_WHOLE, "stream-"))
    part = split.rpartition("-")[2]
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    return draw_disjoint(part, SIZES[part], lambda _: sample_stream(rng, unseen=part == "ood"))


def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have the turns of the careless annotator as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    whole = split.startswith(_WHOLE)
    rng = np.random.default_rng((_SEED, len(SIZES)))
    return tuple(
        Sample(
            id=f"{split.replace(_WHOLE, 'stream-')}-{number:04d}",
            prompt=stream.question if whole else WATCH,
            videos=tuple(gif_uri(frames_of(each)) for each in stream.movements[: CLIPS if whole else 1]),
            answer=stream.as_dict(),
            source="stream",
            demonstration={"turns": list(trace(stream, careless(rng), whole))} if split.endswith("-train") else None,
        )
        for number, stream in enumerate(streams(split))
    )


def expert(episode: StreamEpisode) -> str:
    """Return a note of what a clip shows; after the question the letter, with all notes before it if there are none."""
    if not episode.awaits_answer:
        return episode.stream.movements[episode.current].note
    return _answered(episode, [each.way for each in episode.stream.movements])


def careless(rng: np.random.Generator) -> Annotator:
    """Return an annotator who notes another way one in four times, and answers by the notes."""
    ways: list[str] = []

    def annotate(episode: StreamEpisode) -> str:
        if episode.current == 0 and not episode.awaits_answer:
            ways.clear()
        for each in episode.stream.movements[len(ways) : episode.current + 1]:
            ways.append(slip(each.way, list(MOVES), RIGHT, rng))
        if episode.awaits_answer:
            answer = _answered(episode, ways)
            ways.clear()
            return answer
        return f"{episode.stream.movements[episode.current].name} {ways[-1]}"

    return annotate


def trace(stream: Stream, annotator: Annotator, whole: bool = False) -> tuple[str, ...]:
    """Return the actions of an annotator in a whole episode."""
    episode = StreamEpisode(stream, len(stream.movements) if whole else 1)
    actions: list[str] = []
    while True:
        actions.append(annotator(episode))
        if episode.step(actions[-1]).observation is None:
            return tuple(actions)


def _answered(episode: StreamEpisode, ways: list[str]) -> str:
    """Return the letter, after the notes if none were written while the clips arrived."""
    letter = LETTERS[ways[episode.stream.target]]
    if episode.outcome()["noted"]:
        return letter
    notes = ", ".join(f"{each.name} {way}" for each, way in zip(episode.stream.movements, ways, strict=True))
    return f"{notes}. {letter}"
