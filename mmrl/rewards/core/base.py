"""What a reward takes, what it returns, and the classes that rewards extend.

RewardError(ValueError)
    a reward that cannot be found, built or combined: the caller's to mend, raised before anything is scored

What goes wrong while scoring is no exception but a `Status`. A scorer says so by raising

InvalidAnswer(ValueError)
    the *answer* is malformed: it scores the worst of the range
ScoringFailed(RuntimeError)
    the *scorer* failed, in a way that has a name: NaN (any other exception is of the kind "error")
"""

from __future__ import annotations

import hashlib
import inspect
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.hashing import Unhashable, digest_of
from mmrl.rewards.core.spec import Direction, RewardSpec, Scope, WeightFile

if TYPE_CHECKING:
    from torch import Tensor


class RewardError(ValueError):
    """A reward that cannot be found, built or combined. The message says what came, what was due and what to do."""


class Status(StrEnum):
    """How scoring one answer went."""

    OK = "ok"
    INVALID = "invalid"
    """The *answer* is malformed: it gets the worst value of the reward's range, and is counted."""
    ERROR = "error"
    """The *scorer* failed: NaN, masked out of advantages and metrics, and counted."""
    TIMEOUT = "timeout"
    """The scorer did not answer in time: as `ERROR`."""
    NOT_APPLICABLE = "not_asked"
    """The answer's sample asked for other rewards than this: NaN, and no failure."""


class InvalidAnswer(ValueError):
    """Raised when the answer, not the scorer, is at fault. The text goes into `detail`."""


class ScoringFailed(RuntimeError):
    """Raised when the scorer, not the answer, is at fault."""

    def __init__(
        self, message: str, kind: str = "error", transient: bool = False, retry_after_s: float | None = None
    ) -> None:
        """`kind` ("http_503", "timeout", ...) is what failures are counted by; a `transient` one is tried again."""
        super().__init__(message)
        self.failure = Failure(kind, transient, retry_after_s)

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return self.failure.kind

    @property
    def transient(self) -> bool:
        """Whether it is worth trying again."""
        return self.failure.transient


@dataclass(frozen=True)
class Failure:
    """Why one answer could not be scored."""

    kind: str  # "error", "timeout", "http_503", ...: what failures are counted by
    transient: bool = False  # worth trying again
    retry_after_s: float | None = None  # what a server asked for; a suite waits no less before it tries again


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
    failures: list[dict[str, Failure]] = field(default_factory=list)  # [B]; {name: why it failed}, or empty


Scored: TypeAlias = float | Mapping[str, float] | Exception
"""What scoring one answer gave: a value, several by name, or what was raised."""


class Reward(ABC):
    """Scores one answer at a time; batching, statuses and clocks live here.

        class Brightness(Reward):
            "How bright a picture is."
            name, needs, range = "brightness", ("image",), (0.0, 1.0)

            def score_one(self, item):
                return float(np.asarray(item.image.convert("L")).mean() / 255)

    A reward whose model scores many answers at once extends `BatchReward`; one that compares the answers to a prompt,
    `GroupReward` or `PairReward`.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Fields of `RewardInput` that must be there, such as `image` or `references.box`."""
    range: ClassVar[tuple[float, float]]
    """Lowest and highest value. An invalid answer scores the worst, under every name that the reward gives."""
    version: ClassVar[str] = "1"
    """To be changed whenever its numbers change: cached scores of other versions are not used."""
    scope: ClassVar[Scope] = Scope.SAMPLE
    direction: ClassVar[Direction] = "higher"
    """Which values are better. A suite subtracts what is "lower" (a distance, an error rate)."""
    differentiable: ClassVar[bool] = False
    """Whether `score_tensor` gives gradients with respect to the picture."""
    source: ClassVar[str] = ""
    """The paper or formula."""
    licence: ClassVar[str] = "Apache-2.0"
    """Of its weights where it loads any, else of its code."""
    scheduled: ClassVar[bool] = False
    """Whether scores depend on the progress of training; they are then never taken from a cache."""
    batch_size: ClassVar[int | None] = None
    """Answers that a suite hands over at once; None: all."""
    concurrency: ClassVar[int] = 1
    """Calls that a suite makes at the same time: above 1 only for rewards that wait for a server."""

    settings: dict[str, Any]
    """The arguments it was built with, defaults included."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if wrong := [path for path in cls.needs if path.partition(".")[0] not in INPUT_FIELDS]:
            raise RewardError(
                f"{cls.__name__}.needs names {', '.join(wrong)}; a RewardInput has {', '.join(INPUT_FIELDS)}"
            )

    def __new__(cls, *args: Any, **kwargs: Any) -> Reward:
        """Remembers the arguments: they are part of what identifies a score."""
        self = super().__new__(cls)
        try:
            bound = inspect.signature(cls).bind_partial(*args, **kwargs)
        except TypeError:
            return self  # __init__ is about to say it better
        bound.apply_defaults()
        self.settings = dict(bound.arguments)
        return self

    @abstractmethod
    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """The score of one answer, or several by name (the reward's own name must be among them).

        Raises:
            InvalidAnswer: the answer cannot be read.
            ScoringFailed: the scorer failed in a way that has a name.
        """

    def score_in(self, item: RewardInput, context: RewardContext) -> float | Mapping[str, float]:
        """As `score_one`; overridden by rewards that change as training goes on (which state `scheduled`)."""
        return self.score_one(item)

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """[B] scores of images [B, 3, H, W] in [0, 1], with gradients; `batch` gives prompts and references.

        Raises:
            RewardError: the reward is not differentiable.
        """
        raise RewardError(f"{self.name} is not differentiable: it has no gradient to train through")

    def score(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Score a batch. Never raises because of an answer."""
        started = time.perf_counter()
        whole = [item for item in batch if not _missing(self, item)]
        scored = iter(self._score_whole(whole, context or RewardContext()))
        rows = [
            self._row(ScoringFailed(f"{self.name} needs {missing}", "missing"))
            if (missing := _missing(self, item))
            else self._row(next(scored))
            for item in batch
        ]
        names = sorted({name for row in rows for name in row.values} | {self.name})
        cells = {name: [self._cell(name, row) for row in rows] for name in names}
        return RewardOutput(
            values={n: np.array([value for value, _ in column], np.float32) for n, column in cells.items()},
            status={n: [status for _, status in column] for n, column in cells.items()},
            detail=[{self.name: row.text} if row.text else {} for row in rows],
            seconds=time.perf_counter() - started,
            failures=[{self.name: row.failure} if row.failure else {} for row in rows],
        )

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """What each of the answers scored; exceptions stand in the place of what they prevented."""
        return [_attempt(lambda item=item: self.score_in(item, context)) for item in items]

    def _score_whole(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        if not items:
            return []
        try:
            return _exactly(self.score_rows(items, context), len(items), self.name)
        except Exception as err:  # a border: a scorer that breaks down is recorded, never a score
            return [err] * len(items)

    def weight_files(self) -> tuple[WeightFile, ...]:
        """The files of weights that it was built from."""
        return ()

    @property
    def spec(self) -> RewardSpec:
        """The reward's card, with the weights that it loaded."""
        return spec_of(type(self), self.weight_files())

    def fingerprint(self) -> str:
        """What identifies its scores: name, version, arguments, weights, and the source of a reward of one's own.

        Raises:
            RewardError: an argument or the source cannot be told from another, so scores must not be cached.
        """
        weights = [file.sha256 for file in self.weight_files()]
        try:
            return digest_of(self.name, self.version, self.settings, weights, self.source_digest()).hex()
        except Unhashable as err:
            raise RewardError(f"{self.name} cannot be cached: {err}") from err

    @classmethod
    def source_digest(cls) -> str:
        """Of the file that the class stands in; "" for those of mmrl, whose `version` tells when numbers change."""
        return "" if cls.__module__.startswith("mmrl.") else digest_of_source(cls)

    def as_trl(self, answer: str = "answer") -> Callable[..., list[float | None]]:
        """A reward function for trl's trainers: see `mmrl.rewards.core.adapters.as_trl`."""
        from mmrl.rewards.core.suite import RewardSuite

        return RewardSuite([(self, 1.0)]).as_trl(answer)

    def as_verl(self) -> Callable[..., dict[str, float]]:
        """A `compute_score` for verl: see `mmrl.rewards.core.adapters.as_verl`."""
        from mmrl.rewards.core.suite import RewardSuite

        return RewardSuite([(self, 1.0)]).as_verl()

    def state_dict(self) -> dict[str, Any]:
        """JSON-like state of a reward that remembers something between batches."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if state:
            raise RewardError(f"{self.name} remembers nothing, but was given the state {', '.join(state)}")

    def _row(self, scored: Scored) -> _Row:
        if isinstance(scored, InvalidAnswer):
            if math.isfinite(self._worst):
                return _Row({}, Status.INVALID, str(scored))
            text = f"{self.name} has no worst value to give to an invalid answer: {scored}"
            return _Row({}, Status.ERROR, text, Failure("unbounded"))
        if isinstance(scored, Exception):
            return _Row({}, *told(scored))
        try:
            values = {n: float(v) for n, v in scored.items()} if isinstance(scored, Mapping) else {}
            own = float(values.get(self.name, math.nan)) if isinstance(scored, Mapping) else float(scored)
        except (TypeError, ValueError):
            own = math.nan
        if not math.isfinite(own):
            given = scored.get(self.name) if isinstance(scored, Mapping) else scored
            text = f"{self.name} returned {given!r:.80}, not a finite number"
            return _Row({}, Status.ERROR, text, Failure("not_a_number"))
        return _Row(values | {self.name: own}, Status.OK)

    def _cell(self, name: str, row: _Row) -> tuple[float, Status]:
        """One name's value in one row: names that other rows gave are filled in as this row's status says."""
        if row.status is Status.INVALID:
            return self._worst, row.status
        value = row.values.get(name, math.nan)
        return (value, row.status) if math.isfinite(value) or row.status is not Status.OK else (math.nan, Status.ERROR)

    @property
    def _worst(self) -> float:
        return self.range[0] if self.direction == "higher" else self.range[1]


class BatchReward(Reward):
    """A reward whose model scores many answers in one call."""

    batch_size = 16

    @abstractmethod
    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """The score of each answer. An `InvalidAnswer` or `ScoringFailed` may stand in place of a score."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """The score of one answer."""
        scored = _exactly(self.score_batch([item]), 1, self.name)[0]
        if isinstance(scored, Exception):
            raise scored
        return scored

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """In one call; if that raises, one by one, so that an answer that breaks the model fails alone."""
        try:
            return _exactly(self.score_batch(items), len(items), self.name)
        except Exception as err:  # a border: recorded below, or found again for the rows that caused it
            if len(items) == 1 or (isinstance(err, ScoringFailed) and err.transient):
                return [err] * len(items)
            return super().score_rows(items, context)


class GroupReward(Reward):
    """A reward that looks at all answers to one prompt at once, as diversity does."""

    scope = Scope.GROUP

    @abstractmethod
    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """The score of each answer among the others, in order. A group may have a single answer."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """The score of an answer that is alone in its group."""
        scored = _exactly(self.score_group([item]), 1, self.name)[0]
        if isinstance(scored, Exception):
            raise scored
        return scored

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Group by group; one that raises fails as a whole."""
        results: list[Scored] = [math.nan] * len(items)
        for rows in by_group(items).values():
            members = [items[row] for row in rows]
            try:
                scored = _exactly(self.score_group(members), len(members), self.name)
            except Exception as err:  # a border: recorded as the status of the whole group
                scored = [err] * len(members)
            for row, value in zip(rows, scored, strict=True):
                results[row] = value
        return results


class PairReward(GroupReward):
    """A reward that compares two answers to one prompt. An answer's score is its mean win rate over its group."""

    scope = Scope.PAIR
    range = (0.0, 1.0)

    @abstractmethod
    def compare(self, first: RewardInput, second: RewardInput) -> float:
        """The probability, in [0, 1], that the first answer is the better one."""

    def win_rate(self, first: RewardInput, second: RewardInput) -> float:
        """`compare` in both orders, so that liking whatever stands first cancels out."""
        return (self.compare(first, second) + 1 - self.compare(second, first)) / 2

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Each answer's mean win rate against the others; pairs that failed are left out of the means."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, and this one is alone in its group", "alone")]
        rates: dict[int, list[float]] = defaultdict(list)
        last: dict[int, Exception] = {}
        for i, first in enumerate(items):
            for j in range(i + 1, len(items)):
                rate = _attempt(lambda first=first, second=items[j]: self.win_rate(first, second))
                if isinstance(rate, InvalidAnswer):  # which of the two is at fault is not known
                    rate = ScoringFailed(f"the pair cannot be compared: {rate}", "pair")
                if isinstance(rate, Exception):
                    last[i] = last[j] = rate
                elif not isinstance(rate, Mapping):
                    rates[i].append(rate)
                    rates[j].append(1 - rate)
        return [sum(rates[i]) / len(rates[i]) if rates[i] else last[i] for i in range(len(items))]


@dataclass(frozen=True)
class _Row:
    """How scoring one answer went."""

    values: Mapping[str, float]
    status: Status
    text: str = ""
    failure: Failure | None = None


def spec_of(reward: type[Reward], weights: tuple[WeightFile, ...] = ()) -> RewardSpec:
    """The card of a reward class."""
    return RewardSpec(
        name=reward.name,
        summary=(inspect.getdoc(reward) or "no description").partition("\n")[0],
        range=reward.range,
        needs=reward.needs,
        version=reward.version,
        scope=reward.scope,
        direction=reward.direction,
        differentiable=reward.differentiable,
        source=reward.source,
        licence=reward.licence,
        weights=weights,
    )


def digest_of_source(thing: Any) -> str:
    """Of the file that a class or function stands in.

    Raises:
        Unhashable: it stands in none, as in a notebook.
    """
    try:
        return hashlib.sha256(Path(inspect.getfile(thing)).read_bytes()).hexdigest()
    except (OSError, TypeError) as err:
        raise Unhashable(f"the source of {thing.__qualname__} is in no file") from err


def failure_of(error: Exception) -> Failure:
    """What a failure is counted as, and whether it is worth trying again."""
    if isinstance(error, ScoringFailed):
        return error.failure
    if isinstance(error, TimeoutError):
        return Failure("timeout", transient=True)
    return Failure("error")


def told(error: Exception) -> tuple[Status, str, Failure]:
    """How a row whose scorer raised is recorded: its status, its text, and its failure."""
    failure = failure_of(error)
    status = Status.TIMEOUT if failure.kind == "timeout" else Status.ERROR
    return status, str(error) if isinstance(error, ScoringFailed) else f"{type(error).__name__}: {error}", failure


def by_group(items: Sequence[RewardInput]) -> dict[int, list[int]]:
    """The rows of each group, in order."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        rows[item.group].append(row)
    return dict(rows)


def _attempt(scoring: Any) -> Scored:
    try:
        scored: Scored = scoring()
    except Exception as err:  # a border: whatever a scorer raises is recorded, never a score
        return err
    return scored


def _exactly(scored: Sequence[Scored], size: int, name: str) -> Sequence[Scored]:
    if len(scored) != size:
        raise ScoringFailed(f"{name} gave {len(scored)} scores for {size} answers", "wrong_size")
    return scored


def _missing(reward: Reward, item: RewardInput) -> str:
    return ", ".join(path for path in reward.needs if _lookup(item, path) is None)


def _lookup(item: RewardInput, path: str) -> Any:
    field_name, _, key = path.partition(".")
    value = getattr(item, field_name)
    return value.get(key) if key and isinstance(value, Mapping) else value
