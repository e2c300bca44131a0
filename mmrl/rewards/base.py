"""What a reward takes, what it returns, and the class that most rewards extend.

RewardError(ValueError)
    a reward that cannot be found, built or combined: the caller's to mend, raised before anything is scored

What goes wrong while scoring is no exception but a `Status`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class RewardError(ValueError):
    """A reward that cannot be found, built or combined. The message says what came, what was due and what to do."""


class Status(StrEnum):
    """How scoring one answer went."""

    OK = "ok"
    INVALID = "invalid"
    """The *answer* is malformed: it gets the minimum of the reward's range, and is counted."""
    ERROR = "error"
    """The *scorer* failed: NaN, masked out of advantages and metrics, and counted."""
    TIMEOUT = "timeout"
    """The scorer did not answer in time: as `ERROR`."""


class InvalidAnswer(ValueError):
    """Raised by `Reward.score_one` when the answer, not the scorer, is at fault. The text goes into `detail`."""


@dataclass(frozen=True)
class RewardInput:
    """One answer to score. `image` and `video` are PIL images; `references` holds what is known to be right."""

    id: str
    group: int
    prompt: str
    image: Any = None
    video: Any = None
    text: str | None = None
    references: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


INPUT_FIELDS = tuple(f.name for f in fields(RewardInput))


@dataclass(frozen=True)
class RewardContext:
    """What a reward may know beyond the answer."""

    progress: float = 0.0
    """Share of training that is done, in [0, 1]: for schedules inside a reward."""


@dataclass(frozen=True)
class RewardOutput:
    """Scores of a batch, one array a name. Never a silent zero: see `Status`."""

    values: dict[str, NDArray[np.float32]]  # {name: [B]}; NaN where the scorer failed
    status: dict[str, list[Status]]  # {name: [B]}
    detail: list[dict[str, Any]]  # [B]; free-form, for reports
    events: list[list[tuple[int, float]]] = field(default_factory=list)  # [B] of (decision, reward), for dense credit
    seconds: float = 0.0


class Reward(ABC):
    """Scores one answer at a time; batching, statuses and clocks live here. Higher is better.

        class Brightness(Reward):
            "How bright a picture is, in [0, 1]."
            name, needs, range = "brightness", ("image",), (0.0, 1.0)

            def score_one(self, item):
                return float(np.asarray(item.image.convert("L")).mean() / 255)

    A reward whose model scores many answers at once overrides `score` instead of looping.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Fields of `RewardInput` that must be there, such as `image` or `references.box`."""
    range: ClassVar[tuple[float, float]]
    """Lowest and highest value. An invalid answer scores the lowest, under every name that the reward gives."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if wrong := [path for path in cls.needs if path.partition(".")[0] not in INPUT_FIELDS]:
            raise RewardError(
                f"{cls.__name__}.needs names {', '.join(wrong)}; a RewardInput has {', '.join(INPUT_FIELDS)}"
            )

    @abstractmethod
    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """The score of one answer, or several by name (the reward's own name must be among them).

        Raises:
            InvalidAnswer: the answer cannot be read.
        """

    def score(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Score a batch. Never raises because of an answer."""
        started = time.perf_counter()
        rows = [self._score_row(item) for item in batch]
        names = sorted({name for values, _, _ in rows for name in values} | {self.name})
        cells = {name: [self._cell(name, values, status) for values, status, _ in rows] for name in names}
        return RewardOutput(
            values={n: np.array([value for value, _ in column], np.float32) for n, column in cells.items()},
            status={n: [status for _, status in column] for n, column in cells.items()},
            detail=[{self.name: text} if text else {} for _, _, text in rows],
            seconds=time.perf_counter() - started,
        )

    def _score_row(self, item: RewardInput) -> tuple[Mapping[str, float], Status, str]:
        missing = [path for path in self.needs if _lookup(item, path) is None]
        if missing:
            return {}, Status.ERROR, f"{self.name} needs {', '.join(missing)}"
        try:
            scored = self.score_one(item)
            values = {n: float(v) for n, v in scored.items()} if isinstance(scored, Mapping) else {self.name: scored}
            own = float(values.get(self.name, math.nan))
        except InvalidAnswer as why:
            if math.isfinite(self.range[0]):
                return {}, Status.INVALID, str(why)
            return {}, Status.ERROR, f"{self.name} has no lowest value to give to an invalid answer: {why}"
        except Exception as why:  # a border: whatever a scorer raises is recorded, never a score
            return {}, Status.ERROR, f"{type(why).__name__}: {why}"
        if not math.isfinite(own):
            return {}, Status.ERROR, f"{self.name} returned {values.get(self.name)}, not a finite number"
        return values | {self.name: own}, Status.OK, ""

    def _cell(self, name: str, values: Mapping[str, float], status: Status) -> tuple[float, Status]:
        """One name's value in one row: names that other rows gave are filled in as this row's status says."""
        if status is Status.INVALID:
            return self.range[0], status
        value = values.get(name, math.nan)
        return (value, status) if math.isfinite(value) or status is not Status.OK else (math.nan, Status.ERROR)


def _lookup(item: RewardInput, path: str) -> Any:
    field_name, _, key = path.partition(".")
    value = getattr(item, field_name)
    return value.get(key) if key and isinstance(value, Mapping) else value
