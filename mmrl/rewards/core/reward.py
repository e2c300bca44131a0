"""The base classes of rewards: `Reward`, `BatchReward`, `GroupReward` and `PairReward`."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from mmrl.rewards.core.cache import Unhashable, digest_of, digest_of_source
from mmrl.rewards.core.reward_errors import (
    Failure,
    InvalidAnswer,
    NotApplicable,
    RewardError,
    ScoringFailed,
    Status,
    attempt,
    failure_record,
)
from mmrl.rewards.core.reward_io import (
    INPUT_FIELDS,
    Direction,
    RewardContext,
    RewardInput,
    RewardOutput,
    RewardSpec,
    Scope,
    WeightFile,
    rows_by_group,
)

if TYPE_CHECKING:
    from torch import Tensor


class TrainerMethods:
    """A base class with the methods `as_trl` and `as_verl`, which go with the next release."""

    def as_trl(self, answer: str = "answer") -> Callable[..., list[float | None]]:
        """Return `mmrl.rewards.as_trl(self, answer)`, with a FutureWarning."""
        return _adapter("as_trl")(self, answer)  # type: ignore[no-any-return]

    def as_verl(self) -> Callable[..., dict[str, float]]:
        """Return `mmrl.rewards.as_verl(self)`, with a FutureWarning."""
        return _adapter("as_verl")(self)  # type: ignore[no-any-return]


def _adapter(name: str) -> Callable[..., Any]:
    message = f"the method {name} is now the function mmrl.rewards.{name}; the method goes with the next release"
    warnings.warn(message, FutureWarning, stacklevel=3)
    adapter: Callable[..., Any] = getattr(import_module("mmrl.rewards"), name)
    return adapter


_log = logging.getLogger(__name__)

Scored: TypeAlias = float | Mapping[str, float] | Exception
"""The result of scoring one answer: a value, several values by name, or the exception that was raised."""


class Reward(TrainerMethods, ABC):
    """A reward that scores one answer at a time; batching, statuses and timing are implemented here.

        class Brightness(Reward):
            "The mean brightness of an image."
            name, needs, range = "brightness", ("image",), (0.0, 1.0)

            def score_one(self, item):
                return float(np.asarray(item.image.convert("L")).mean() / 255)

    Extend `BatchReward` for a model that scores many answers in one call, `GroupReward` or `PairReward` for a reward
    that compares the answers to one prompt, `RowsReward` for one that computes with a model of the run.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Required fields of `RewardInput`, such as `image` or `references.box`."""
    range: ClassVar[tuple[float, float]]
    """Lowest and highest value. An invalid answer gets the worst of the two, under every name that the reward gives."""
    version: ClassVar[str] = "1"
    """Part of every cache key: change it whenever the reward's numbers change."""
    scope: ClassVar[Scope] = Scope.SAMPLE
    direction: ClassVar[Direction] = "higher"
    """The better values. A suite subtracts a reward for which "lower" is better (a distance, an error rate)."""
    differentiable: ClassVar[bool] = False
    """True if `score_tensor` gives gradients with respect to the image."""
    reads_latents: ClassVar[bool] = False
    """True if it scores noisy latents, with gradients with respect to them: a `LatentReward`."""
    source: ClassVar[str] = ""
    """The paper or formula."""
    licence: ClassVar[str] = "Apache-2.0"
    """The licence of the weights if the reward loads any, else of the code; "not stated" for classes of other files."""
    scheduled: ClassVar[bool] = False
    """True if scores depend on the progress of training; such scores are never cached."""
    learns: ClassVar[bool] = False
    """True if `learn` changes the reward between the iterations of a run; set `scheduled` as well. Of several
    processes, process 0 learns, and the others load what its `state_dict` returns."""
    batch_size: ClassVar[int | None] = None
    """Answers per call of a suite; None means all."""
    concurrency: ClassVar[int] = 1
    """Concurrent calls of a suite: above 1 only for rewards that wait for a server."""

    models: tuple[str, ...] = ()
    """The names of the models of the run that scores are computed with (`RewardContext.models`). Such a reward scores
    when all rollouts of a round are sampled, and is never cached."""
    painters: tuple[str, ...] = ()
    """Those of `models` that draw for the reward (`mmrl.rewards.core.picture_drawing`)."""
    denoisers: tuple[str, ...] = ()
    """Those of `models` that predict velocities of pictures for it (`mmrl.rewards.core.denoising`); the rest write."""

    inner_rewards: tuple[Reward, ...] = ()
    """The rewards whose scores this one reads; the fingerprint and the weight files are also theirs."""

    _is_in_range = True

    settings: dict[str, Any]
    """The constructor arguments, defaults included."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        of_suite = cls.__module__.startswith(("mmrl.", "mmrl_shapeworld."))
        if cls.licence == Reward.licence and "licence" not in vars(cls) and not of_suite:
            cls.licence = "not stated"  # a class of another file is not under the licence of the suite
        if wrong := [path for path in cls.needs if path.partition(".")[0] not in INPUT_FIELDS]:
            raise RewardError(
                f"{cls.__name__}.needs names {', '.join(wrong)}; a RewardInput has {', '.join(INPUT_FIELDS)}"
            )

    def __new__(cls, *args: Any, **kwargs: Any) -> Reward:
        """Store the arguments in `settings`, which is part of the fingerprint.

        Raises:
            TypeError: the class has no `__init__`, and arguments came, which `object` would ignore.
        """
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__} takes no arguments, and got {', '.join([*map(repr, args), *kwargs])}")
        self = super().__new__(cls)
        try:
            bound = inspect.signature(cls).bind_partial(*args, **kwargs)
        except TypeError:
            return self  # __init__ raises with a better message
        bound.apply_defaults()
        self.settings = dict(bound.arguments)
        return self

    @abstractmethod
    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """Return the score of one answer, or several by name (the reward's name must be among them).

        Raises:
            InvalidAnswer: the answer cannot be parsed.
            NotApplicable: the answer has nothing that the reward measures.
            ScoringFailed: the scorer failed in a way that has a name.
        """

    def score_in(self, item: RewardInput, context: RewardContext) -> float | Mapping[str, float]:
        """Return `score_one(item)`; a reward that changes with training progress overrides it and sets `scheduled`."""
        return self.score_one(item)

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores, with gradients, of images [B, 3, H, W] in [0, 1]; `batch` has prompts and references.

        A reward that needs `video` gets videos [B, F, 3, H, W].

        Raises:
            RewardError: the reward is not differentiable.
        """
        raise RewardError(f"{self.name} is not differentiable: it has no gradient to train through")

    def score(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Score a batch. Never raises because of an answer.

        Raises:
            RewardError: it is not a sequence of `RewardInput`.
        """
        started = time.perf_counter()
        check_inputs(batch)
        complete = [item for item in batch if not _missing(self, item)]
        scored = iter(self._score_complete(complete, context or RewardContext()))
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
        """Return the result of each answer; an exception stands in place of the score that it prevented."""
        return [attempt(self.score_in, item, context) for item in items]

    def _score_complete(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        if not items:
            return []
        try:
            return _exactly(self.score_rows(items, context), len(items), self.name)
        except Exception as err:  # a border: a scorer that breaks down is recorded, never a score
            return [err] * len(items)

    def learn(self, items: Sequence[RewardInput]) -> Mapping[str, float]:
        """Learn from all answers of an iteration after they were scored, and return metrics; never in evaluations."""
        return {}

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Return the weight files that the reward has loaded."""
        return tuple(file for each in self.inner_rewards for file in each.weight_files())

    @property
    def spec(self) -> RewardSpec:
        """The reward's card, with the weights that it loaded."""
        return spec_of(type(self), self.weight_files())

    def fingerprint(self) -> str:
        """Return the hash that identifies the scores: name, version, arguments, weights, source of a user's reward.

        Raises:
            RewardError: an argument or the source cannot be hashed, so scores must not be cached.
        """
        weights = [file.sha256 for file in self.weight_files()]
        try:
            own = digest_of(self.name, self.version, self.settings, weights, self.source_digest()).hex()
        except Unhashable as err:
            raise RewardError(f"{self.name} cannot be cached: {err}") from err
        if not self.inner_rewards:
            return own
        return hashlib.sha256("".join([own, *(each.fingerprint() for each in self.inner_rewards)]).encode()).hexdigest()

    @classmethod
    def source_digest(cls) -> str:
        """Return the hash of the class's source file; "" for a class of mmrl, which has a `version` instead."""
        return "" if cls.__module__.startswith("mmrl.") else digest_of_source(cls)

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-like state of a reward that keeps any between batches."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        if state:
            raise RewardError(f"{self.name} has no state, but got the state {', '.join(state)}")

    def _row(self, scored: Scored) -> _Row:
        if isinstance(scored, InvalidAnswer):
            if math.isfinite(self._worst):
                return _Row({}, Status.INVALID, str(scored))
            text = f"{self.name} has no worst value for an invalid answer: {scored}"
            return _Row({}, Status.ERROR, text, Failure("unbounded"))
        if isinstance(scored, NotApplicable):
            return _Row({}, Status.NOT_APPLICABLE)
        if isinstance(scored, Exception):
            return _Row({}, *failure_record(scored))
        try:
            values = {n: float(v) for n, v in scored.items()} if isinstance(scored, Mapping) else {}
            value = float(values.get(self.name, math.nan)) if isinstance(scored, Mapping) else float(scored)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            if isinstance(scored, Mapping) and self.name not in scored:
                text = (
                    f"{self.name} returned the keys {', '.join(map(str, scored))}, without its own value {self.name!r}"
                )
            else:
                returned = scored[self.name] if isinstance(scored, Mapping) else scored
                text = f"{self.name} returned {returned!r:.80}, not a finite number"
            return _Row({}, Status.ERROR, text, Failure("not_a_number"))
        self._check_range(value)
        return _Row(values | {self.name: value}, Status.OK)

    def _check_range(self, value: float) -> None:
        """Warn, once for each reward, of a value outside of the range that the class states."""
        low, high = self.range
        rounding = 1e-4 * max(1.0, high - low)
        if self._is_in_range and not low - rounding <= value <= high + rounding:
            self._is_in_range = False
            _log.warning(
                "%s returned %g, outside of its stated range %g to %g. A malformed answer gets the worst value of that "
                "range, so correct the range or the value",
                self.name,
                value,
                low,
                high,
            )

    def _cell(self, name: str, row: _Row) -> tuple[float, Status]:
        """Return value and status of one name in one row; a name that only other rows have follows the row's status."""
        if row.status is Status.INVALID:
            return self._worst, row.status
        value = row.values.get(name, math.nan)
        return (value, row.status) if math.isfinite(value) or row.status is not Status.OK else (math.nan, Status.ERROR)

    @property
    def _worst(self) -> float:
        return self.range[0] if self.direction == "higher" else self.range[1]


class RowsReward(Reward):
    """A reward that needs all answers of a call at once, or what `RewardContext` has of the run, such as its models."""

    @abstractmethod
    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Return the result of each answer; an exception stands in place of the score that it prevented."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """Score one answer by itself and outside of a run, where there is no model."""
        return _only(self.score_rows([item], RewardContext()), self.name)


class BatchReward(Reward):
    """A reward whose model scores many answers in one call."""

    batch_size = 16

    @abstractmethod
    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return the score of each answer. An `InvalidAnswer` or `ScoringFailed` may stand in place of a score."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        return _only(self.score_batch([item]), self.name)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in one call; if it raises, one by one, so that only the answer at fault fails."""
        try:
            return _exactly(self.score_batch(items), len(items), self.name)
        except Exception as err:  # a border: recorded below, or raised again for the rows that caused it
            if len(items) == 1 or (isinstance(err, ScoringFailed) and err.transient):
                return [err] * len(items)
            return super().score_rows(items, context)


class GroupReward(Reward):
    """A reward that scores all answers to one prompt together, such as diversity."""

    scope = Scope.GROUP

    @abstractmethod
    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return the score of each answer of a group, in order. A group may have a single answer."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        return _only(self.score_group([item]), self.name)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score group by group; a group that raises fails as a whole."""
        results: list[Scored] = [math.nan] * len(items)
        for rows in rows_by_group(items).values():
            members = [items[row] for row in rows]
            try:
                scored = _exactly(self.score_group(members), len(members), self.name)
            except Exception as err:  # a border: recorded as the status of the whole group
                scored = [err] * len(members)
            for row, value in zip(rows, scored, strict=True):
                results[row] = value
        return results


class PairReward(GroupReward):
    """A reward that compares two answers to one prompt. The score of an answer is its mean win rate in its group."""

    scope = Scope.PAIR
    range = (0.0, 1.0)

    @abstractmethod
    def compare(self, first: RewardInput, second: RewardInput) -> float:
        """Return the probability, in [0, 1], that the first answer is better."""

    def win_rate(self, first: RewardInput, second: RewardInput) -> float:
        """Return the mean of `compare` in both orders, which cancels a preference for the first place."""
        return (self.compare(first, second) + 1 - self.compare(second, first)) / 2

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return each answer's mean win rate against the others; pairs that failed are left out of the means."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, but this group has only one", "alone")]
        rates: dict[int, list[float]] = defaultdict(list)
        last: dict[int, Exception] = {}
        for i, j in combinations(range(len(items)), 2):
            rate = attempt(self.win_rate, items[i], items[j])
            if isinstance(rate, InvalidAnswer):  # either of the two may be at fault
                rate = ScoringFailed(f"the pair cannot be compared: {rate}", "pair")
            if isinstance(rate, Exception):
                last[i] = last[j] = rate
            else:
                rates[i].append(rate)
                rates[j].append(1 - rate)
        return [sum(rates[i]) / len(rates[i]) if rates[i] else last[i] for i in range(len(items))]


@dataclass(frozen=True)
class _Row:
    """The result of scoring one answer."""

    values: Mapping[str, float]
    status: Status
    text: str = ""
    failure: Failure | None = None


def check_inputs(batch: Any) -> None:
    """Raise `RewardError` if a batch is no sequence of `RewardInput`."""
    wrong = [each for each in batch if not isinstance(each, RewardInput)] if isinstance(batch, Sequence) else [batch]
    if wrong:
        raise RewardError(f"a batch is a list of RewardInput, such as RewardInput(id='0', group=0, prompt='a cat', "
                          f"image=image), not of {type(wrong[0]).__name__}")  # fmt: skip


def purpose_of(reward: type[Reward]) -> str:
    """Return the docstring of a reward class, or of the complete one that it derives from."""
    texts = (vars(each).get("__doc__") for each in takewhile(lambda each: not inspect.isabstract(each), reward.__mro__))
    return inspect.cleandoc(next((text for text in texts if text), "")) or "no description"


def spec_of(reward: type[Reward], weights: tuple[WeightFile, ...] = ()) -> RewardSpec:
    """Return the card of a reward class."""
    return RewardSpec(
        name=reward.name,
        summary=purpose_of(reward).partition("\n")[0],
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


def _exactly(scored: Sequence[Scored], size: int, name: str) -> Sequence[Scored]:
    if len(scored) != size:
        raise ScoringFailed(f"{name} gave {len(scored)} scores for {size} answers", "wrong_size")
    return scored


def _only(scored: Sequence[Scored], name: str) -> float | Mapping[str, float]:
    result = _exactly(scored, 1, name)[0]
    if isinstance(result, Exception):
        raise result
    return result


def _missing(reward: Reward, item: RewardInput) -> str:
    return ", ".join(path for path in reward.needs if _lookup(item, path) is None)


def _lookup(item: RewardInput, path: str) -> Any:
    field_name, _, key = path.partition(".")
    value = getattr(item, field_name)
    return value.get(key) if key and isinstance(value, Mapping) else value
