"""The card of a reward, the input that it scores and the output that it returns."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import Failure, RewardError, ScoringFailed, Status

Direction = Literal["higher", "lower"]


class Scope(StrEnum):
    """The number of answers that a reward needs to score one of them."""

    SAMPLE = "sample"
    """A single answer."""
    PAIR = "pair"
    """Two answers to one prompt, compared."""
    GROUP = "group"
    """All answers to one prompt at once."""


@dataclass(frozen=True)
class WeightFile:
    """A file of weights that a reward was built from."""

    path: str  # a local path, or hub id and file name
    sha256: str

    @classmethod
    def of(cls, path: Path) -> WeightFile:
        """Return a local file with its digest."""
        with path.open("rb") as file:
            return cls(str(path), hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class RewardSpec:
    """The facts about a reward that lists, reports and suites use."""

    name: str
    summary: str  # the first line of its docstring
    range: tuple[float, float]  # lowest and highest value; may be infinite
    needs: tuple[str, ...]  # required fields of a RewardInput
    version: str  # changes when its numbers do; part of every cache key
    scope: Scope
    direction: Direction  # "lower": an error or a distance, which a suite subtracts
    differentiable: bool  # has `score_tensor`
    source: str  # paper or formula
    licence: str  # of the scorer's weights where it has any, else of its code
    weights: tuple[WeightFile, ...] = field(default=())

    @property
    def worst(self) -> float:
        """The score of an invalid answer; if it is infinite, an invalid answer cannot be scored."""
        return self.range[0] if self.direction == "higher" else self.range[1]

    @property
    def sign(self) -> int:
        """1 where higher is better, else -1: the factor of the value in a total."""
        return 1 if self.direction == "higher" else -1


TOTAL = "total"
"""The name of the aggregated reward in `RewardOutput.values`."""
SAMPLE_REWARDS = "rewards"
"""The key in `RewardInput.metadata` of the rewards that the sample names; without it, the run's rewards apply."""


@dataclass(frozen=True)
class RewardInput:
    """An answer to score. `image` and `video` are PIL images; `references` holds the ground truth.

    `outcome` is what the episode of an environment came to, of which `text` is the last turn; empty without one.
    `sample` is the sample of the answer, for models of the run that read it again; None: it is not known.
    """

    id: str
    group: int
    prompt: str
    image: Any = None
    video: Any = None
    text: str | None = None
    references: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    sample: Sample | None = field(default=None, repr=False, compare=False)


INPUT_FIELDS = tuple(f.name for f in fields(RewardInput))


@dataclass(frozen=True)
class RewardContext:
    """The state of training while a batch is scored."""

    progress: float = 0.0
    """Share of training that is done, in [0, 1]: for schedules inside a reward."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """The models of the run by name, `policy` among them: a `TextModel` if it writes, a `PictureModel` if it draws.
    Empty outside of training."""
    seed: int = 0
    """The seed of what a reward draws by chance; another one in each iteration."""

    def no_model(self, wanted: str) -> ScoringFailed:
        """Return the error of a reward that does not find the model which it is computed with."""
        known = ", ".join(self.models) or "none: these answers are scored outside of a run"
        return ScoringFailed(f"there is no {wanted} (there is {known})", "no_model")


@dataclass(frozen=True)
class RewardOutput:
    """Scores of a batch, one array per name. A failure is NaN with a `Status`, never a silent zero."""

    values: dict[str, NDArray[np.float32]]  # {name: [B]}; NaN where the scorer failed
    status: dict[str, list[Status]]  # {name: [B]}
    detail: list[dict[str, Any]]  # [B]; free-form, for reports
    events: list[list[tuple[int, float]]] = field(default_factory=list)  # [B] of (decision, reward), for dense credit
    seconds: float = 0.0
    failures: list[dict[str, Failure]] = field(default_factory=list)  # [B]; {name: failure}, or empty

    def failure_of(self, name: str, row: int) -> ScoringFailed | None:
        """Return the failure of a reward on an answer, for a reward that depends on it; None: it did not fail."""
        if self.status[name][row] not in (Status.ERROR, Status.TIMEOUT):
            return None
        failure = self.failures[row].get(name, Failure("error"))
        text = f"{name} failed: {self.detail[row].get(name, failure.kind)}"
        return ScoringFailed(text, failure.kind, failure.transient, failure.retry_after_s)


def reward_input(
    sample: Sample,
    media: Any,  # a PIL image, a video as a list of PIL images, or a text
    group: int,
    id: str,
    tokens: Sequence[int] | None = None,  # token ids of a text
    outcome: Mapping[str, Any] | None = None,  # of the row's episode
    turns: Sequence[str] = (),  # the text of each turn of the row's episode
    start: Mapping[str, Any] | None = None,  # what the row started with beside the sample, as `RowStart.as_dict` says
) -> RewardInput:
    """Return the input of an answer to `sample`.

    `references` holds the images and videos of the prompt (`images`, `videos`) and the sample's conditions (an image
    to edit), as paths or data URIs, its metadata, and its `answer`, if any. `metadata` holds task, source, the
    `tokens` of a text, the texts of all `turns`, the `start` of the row (its label, prefix, max_new_tokens, ...: the
    text begins with the prefix, the tokens do not), and the rewards that the sample names.

    Raises:
        RewardError: `media` is of another type.
    """
    references: dict[str, Any] = {**sample.metadata, **sample.conditions}
    references |= {key: list(paths) for key, paths in (("images", sample.images), ("videos", sample.videos)) if paths}
    if sample.answer is not None:
        references["answer"] = sample.answer
    metadata: dict[str, Any] = {"task": sample.task, "source": sample.source}
    if tokens is not None:
        metadata["tokens"] = list(tokens)
    if turns:
        metadata["turns"] = list(turns)
    if start is not None:
        metadata["start"] = dict(start)
    if sample.rewards:
        metadata[SAMPLE_REWARDS] = sample.rewards
    image, video, text = None, None, None
    if isinstance(media, Image.Image):
        image = media
    elif isinstance(media, str):
        text = media
    elif isinstance(media, list | tuple) and media and all(isinstance(frame, Image.Image) for frame in media):
        video = list(media)
    else:
        raise RewardError(
            f"sample {sample.id!r}: cannot score a {type(media).__name__}; "
            "a reward takes a PIL image, a video as a non-empty list of PIL images, or a text"
        )
    return RewardInput(
        id=id,
        group=group,
        prompt=sample.last_text,
        image=image,
        video=video,
        text=text,
        references=references,
        metadata=metadata,
        outcome=outcome or {},
        sample=sample,
    )


def rows_by_group(items: Sequence[RewardInput]) -> dict[int, list[int]]:
    """Return the rows of each group, in order."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        rows[item.group].append(row)
    return dict(rows)


def select_rows(output: RewardOutput, rows: Sequence[int]) -> RewardOutput:
    """Return the given rows of an output, in the given order."""
    index = np.asarray(rows, np.intp)
    return RewardOutput(
        values={name: column[index] for name, column in output.values.items()},
        status={name: [column[row] for row in rows] for name, column in output.status.items()},
        detail=[output.detail[row] for row in rows],
        events=[output.events[row] for row in rows] if output.events else [],
        seconds=output.seconds,
        failures=[output.failures[row] for row in rows] if output.failures else [],
    )


def without_void_rows(output: RewardOutput, voids: Sequence[str | None]) -> RewardOutput:  # [B] kinds of failure
    """Return an output in which answers whose episode broke down are not scored: their values are NaN.

    Their status is an error, and their failure `episode_timeout` or the like: the environment is at fault.
    """
    rows = [row for row, kind in enumerate(voids) if kind is not None]
    if not rows:
        return output
    values = {name: column.copy() for name, column in output.values.items()}
    status = {name: list(column) for name, column in output.status.items()}
    detail = [dict(each) for each in output.detail]
    failures = [dict(each) for each in output.failures] or [{} for _ in voids]
    events = [list(each) for each in output.events]
    for row in rows:
        for name in values:
            if status[name][row] is Status.NOT_APPLICABLE:
                continue
            values[name][row], status[name][row] = math.nan, Status.ERROR
            detail[row][name] = f"the episode broke down ({voids[row]})"
            failures[row][name] = Failure(f"episode_{voids[row]}")
        if events:
            events[row] = []
    return replace(output, values=values, status=status, detail=detail, failures=failures, events=events)


def append_rows(output: RewardOutput, added: Sequence[Mapping[str, float]]) -> RewardOutput:
    """Return an output followed by rows of which only values are known: {name: value}, each value finite.

    A name that an added row lacks gets NaN and `Status.NOT_APPLICABLE`.
    """
    names = list(output.values)
    missing = [[row.get(name, math.nan) for row in added] for name in names]
    return RewardOutput(
        values={
            name: np.concatenate([output.values[name], np.asarray(column, np.float32)])
            for name, column in zip(names, missing, strict=True)
        },
        status={
            name: [*output.status[name], *(Status.OK if name in row else Status.NOT_APPLICABLE for row in added)]
            for name in names
        },
        detail=[*output.detail, *({} for _ in added)],
        events=[*output.events, *([] for _ in added)] if output.events else [],
        seconds=output.seconds,
        failures=[*output.failures, *({} for _ in added)] if output.failures else [],
    )


def merge_outputs(
    parts: Sequence[tuple[Sequence[int], RewardOutput]],  # rows of the merged batch, and their output
    size: int,
    reward: str | None = None,
) -> RewardOutput:
    """Merge outputs that cover different rows of a batch of `size` answers.

    Names that a part lacks: without `reward`, NaN and `Status.NOT_APPLICABLE`, with the total as the last name. With
    `reward`, the name of the reward that all parts come from, the value and the status of that reward in the same row,
    or `Status.ERROR` where that status is `OK`; names are sorted.
    """
    found = dict.fromkeys(name for _, output in parts for name in output.values)
    names = [*(name for name in found if name != TOTAL), TOTAL] if reward is None else sorted({*found, reward})
    absent = Status.NOT_APPLICABLE if reward is None else Status.ERROR
    values = {name: np.full(size, math.nan, np.float32) for name in names}
    status = {name: [absent] * size for name in names}
    detail: list[dict[str, Any]] = [{} for _ in range(size)]
    failures: list[dict[str, Failure]] = [{} for _ in range(size)]
    events: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for rows, output in parts:
        index = np.asarray(rows, np.intp)
        for name in names:
            source = name if name in output.values else reward
            if source is None:
                continue
            states = output.status[source]
            if source == name:
                values[name][index] = output.values[source]
            for place, row in enumerate(rows):
                if source == name:
                    status[name][row] = states[place]
                elif states[place] is not Status.OK:
                    values[name][row], status[name][row] = output.values[source][place], states[place]
        for place, row in enumerate(rows):
            detail[row], failures[row] = output.detail[place], output.failures[place]
            events[row] = output.events[place] if output.events else []
    return RewardOutput(values, status, detail, events if any(events) else [], failures=failures)


LARGEST_BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1. Scores are returned as float32, in which 1 - 1e-9 would round to 1."""


def clamp_below_one(value: float) -> float:
    """Return the score of an imperfect answer, at most `LARGEST_BELOW_ONE`, so that it does not round to 1."""
    return min(value, LARGEST_BELOW_ONE)
