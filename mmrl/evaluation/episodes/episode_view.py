"""`EpisodeView`: an episode as people look at it, with what the policy saw, wrote and got in each turn, within limits.

Texts, pictures and numbers come from models, data sets and environments; whoever shows them must escape the texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mmrl.data.media.budget import fit_image
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation
from mmrl.environments.play import first_observation
from mmrl.evaluation.episodes.action_marks import answered_space, marked_picture, marks_in
from mmrl.evaluation.image_grid import first_of_each_source, side_by_side
from mmrl.evaluation.report.page import as_text, shortened
from mmrl.rewards.parsing.boxes import SPACES, Space

if TYPE_CHECKING:
    from mmrl.data.media.reader import MediaReader
    from mmrl.data.media.video import VideoFrames
    from mmrl.rollout import EpisodeRecord

MOST_TURNS = 16
"""Turns of an episode; later ones are left out and counted."""
MOST_PICTURES = 4
"""Pictures and clips of one observation; further ones are left out."""
MOST_FRAMES = 4
"""Frames of a clip, at equal distances."""
MOST_SIDE = 768
"""Pixels of the longer side of a picture; larger ones are reduced."""
MOST_TEXT = 4_000
"""Characters of a text; a longer one is shortened in the middle."""
MOST_VALUES = 24
"""Rewards, measured values and keys of an outcome; further ones are left out."""
VALUE_TEXT = 200
"""Characters of a value of an outcome."""

Value = str | float | bool | None


@dataclass(frozen=True)
class PictureView:
    """A picture, or frames of a clip side by side."""

    image: Image.Image = field(repr=False)
    size: tuple[int, int]
    """Width and height of the picture as the policy saw it."""
    clip_frames: int = 0
    """The number of frames that the policy saw; 0: a picture."""


@dataclass(frozen=True)
class TurnView:
    """A turn: what the policy saw since its last action, what it wrote, and what it got."""

    observed: str
    pictures: tuple[PictureView, ...]
    action: str
    space: Space | None
    """The coordinate space of points and boxes in the action; None: it is not known."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeView:
    """The turns of one row and their outcome."""

    id: str
    turns: tuple[TurnView, ...]
    outcome: Mapping[str, Value]
    end: str
    """Why there was no further turn: over, cut_off or context."""
    left_out: int = 0
    """The number of turns that are not shown."""


def episode_view(sample: Sample, record: EpisodeRecord, reader: MediaReader) -> EpisodeView:
    """Return an episode for people to look at.

    Args:
        sample: the sample that began it.
        record: its texts, observations and rewards. Forced turns are shown too, and measured as `forced`.
        reader: reads the media of the sample within the policy's budget.

    Raises:
        DataError: a picture of the sample cannot be read.
    """
    forced = len(record.forced)
    texts = [*(text for text, _ in record.forced), *record.texts]
    infos = [*({"forced": 1.0} for _ in record.forced), *record.info]
    between = [*(observed for _, observed in record.forced), *record.observations]
    observations = [first_observation(sample, reader), *between]
    last = len(texts) - 1
    turns = tuple(
        TurnView(
            observed=shortened(observed.text, MOST_TEXT),
            pictures=_pictures(observed, reader),
            action=shortened(action, MOST_TEXT),
            space=_space_of(sample, record, is_answer=number == last and record.end == "over"),
            rewards=_rewards(record, number - forced),
            info=_numbers(infos[number]) if number < len(infos) else {},
        )
        for number, (observed, action) in enumerate(zip(observations, texts, strict=False))
        if number < MOST_TURNS
    )
    outcome = {shortened(str(key), VALUE_TEXT): _value(value) for key, value in _first(record.outcome).items()}
    return EpisodeView(sample.id, turns, outcome, str(record.end), max(0, len(texts) - len(turns)))


def marked_pictures(episode: EpisodeView) -> list[list[tuple[str, Image.Image]]]:
    """Return the pictures of each turn with their captions, and on them the points and boxes of the turn's action.

    An action on a picture of an earlier turn shows that picture once more.
    """
    seen: list[PictureView] = []
    turns = []
    for turn in episode.turns:
        first = len(seen)
        seen += [each for each in turn.pictures if not each.clip_frames]
        marks = [] if turn.space is None else marks_in(turn.action, turn.space, [each.size for each in seen])
        by_image: dict[int, list[Any]] = {}
        for mark in marks:
            by_image.setdefault(len(seen) - 1 if mark.image is None else mark.image, []).append(mark)
        views = [
            (f"picture {number}, again", marked_picture(seen[number].image, found))
            for number, found in sorted(by_image.items())
            if number < first
        ]
        number = first
        for each in turn.pictures:
            if each.clip_frames:
                views.append((f"clip of {each.clip_frames} frames", each.image.convert("RGB")))
            else:
                views.append((f"picture {number}", marked_picture(each.image, by_image.get(number, []))))
                number += 1
        turns.append(views)
    return turns


def _space_of(sample: Sample, record: EpisodeRecord, is_answer: bool) -> Space | None:
    """Return the space of an action: the task's for a final answer in boxes, else the environment's."""
    task = answered_space(sample)
    chosen = task if is_answer and task is not None else record.space or task
    return next((space for space in SPACES if space == chosen), None)


def _pictures(observation: Observation, reader: MediaReader) -> tuple[PictureView, ...]:
    found = [
        PictureView(_reduced(fitted), fitted.size)
        for fitted in (fit_image(image.convert("RGB"), reader.budget.image) for image in observation.images)
    ]
    found += [PictureView(_strip(clip), clip.size, len(clip.frames)) for clip in observation.videos]
    return tuple(found[:MOST_PICTURES])


def _reduced(image: Image.Image) -> Image.Image:
    small = image.copy()
    small.thumbnail((MOST_SIDE, MOST_SIDE))
    return small


def _strip(clip: VideoFrames) -> Image.Image:
    count = len(clip.frames)
    chosen = np.linspace(0, count - 1, min(count, MOST_FRAMES)).round().astype(int)
    return side_by_side([Image.fromarray(clip.frames[place]) for place in chosen])


def _rewards(record: EpisodeRecord, turn: int) -> dict[str, float]:
    sums: dict[str, float] = {}
    for event in record.events:
        if event.turn == turn:
            sums[event.name] = sums.get(event.name, 0.0) + event.value
    return _numbers(sums)


def _numbers(values: Mapping[str, float]) -> dict[str, float]:
    return {
        shortened(str(name), VALUE_TEXT): float(value)
        for name, value in _first(values).items()
        if math.isfinite(float(value))
    }


def _first(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(list(values.items())[:MOST_VALUES])


def _value(value: Any) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return as_text(value, VALUE_TEXT)


def kept_rows(sources: Sequence[str], draws: int, count: int) -> list[int]:
    """Return the rows whose episodes an evaluation keeps: the first draws of the first samples of each source."""
    return [sample * draws for sample in first_of_each_source(sources, count)[:count]]
