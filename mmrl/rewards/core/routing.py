"""Rewards that samples ask for themselves, so that one run mixes tasks (V-Triune, arXiv:2505.18129).

    rewards = RoutedRewards(default=[Part(load("maths"))], choices=distinct_choices(samples))
    rewards.score(inputs).values  # {"maths": ..., "box_iou": ..., "total": ...}: NaN where a reward was not asked for

It has the face of a `RewardSuite`. Each distinct choice of rewards is a suite of its own and gives each of its answers
a `total`; equal rewards (name and arguments) are loaded once, and called once for all answers that ask for them.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards.core import registry
from mmrl.rewards.core.base import Failure, Reward, RewardContext, RewardError, RewardInput, RewardOutput, Status
from mmrl.rewards.core.cache import ScoreCache
from mmrl.rewards.core.executor import DaemonPool, Part, RewardWorker
from mmrl.rewards.core.inputs import ASKED, rows_of
from mmrl.rewards.core.suite import TOTAL, PendingScores, RewardSuite, Tallies

__all__ = ["PendingRoutes", "RoutedRewards", "Scorer", "SharedLoader", "distinct_choices"]


class Scorer(Protocol):
    """What a `RewardSuite` and `RoutedRewards` have in common. What `submit` gives goes to the same one's `join`."""

    @property
    def compares(self) -> bool:
        """Whether batches must hold whole groups."""
        ...

    def submit(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> Any:
        """Begin to score a batch and return at once."""
        ...

    def join(self, scores: Sequence[Any]) -> RewardOutput:
        """Wait for several batches, and give them as one, in order."""
        ...

    def counts(self, output: RewardOutput) -> dict[str, dict[str, int]]:
        """How many answers had which status, by reward."""
        ...

    def failures(self, output: RewardOutput) -> dict[str, dict[str, int]]:
        """How many answers could not be scored, by reward and kind."""
        ...

    def refuse_unscored(self, output: RewardOutput) -> None:
        """
        Raises:
            TooFewScored: too few answers have a total.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-like state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        ...


@dataclass(frozen=True)
class _Route:
    """The rewards of one choice."""

    suite: RewardSuite  # adds up; the lanes below score
    lanes: tuple[int, ...]  # of each of its parts


class RoutedRewards(Tallies):
    """Scores each answer by the rewards that its sample asks for, or by those of the run."""

    def __init__(
        self,
        default: Sequence[Part],
        choices: Iterable[Choices],
        *,
        load: Callable[..., Reward] | None = None,
        watched: Sequence[Part] = (),
        renormalise: bool = False,
        min_valid_share: float = 0.0,
        cache: ScoreCache | None = None,
    ) -> None:
        """
        Args:
            default: the rewards of samples that choose none; may be empty if there are no such samples.
            choices: all that samples choose, as `distinct_choices` gives them.
            load: builds a reward; the `SharedLoader` that `default` was built with, so that equal rewards are shared.
            watched: rewards of weight 0 that every answer is scored by as well.
            renormalise: a sum of what is known, scaled up by the weight of what is not, instead of NaN.
            min_valid_share: in [0, 1]; `refuse_unscored` raises where fewer answers have a total.
            cache: where scores are kept.

        Raises:
            RewardError: a reward cannot be loaded, stands twice in one choice, or is a file that a sample names.
        """
        if weighty := [part.reward.name for part in watched if part.weight]:
            raise RewardError(f"watched rewards have the weight 0, unlike {', '.join(weighty)}")
        load = load or SharedLoader()
        self.min_valid_share = min_valid_share
        self._parts: list[Part] = []  # one an instance: how its lane calls it
        self._states: dict[str, Reward] = {}  # by a name that two processes agree on
        self._routes: dict[str, _Route] = {}

        def add(route: str, parts: Sequence[Part]) -> None:
            mine = [*parts, *(part for part in watched if part.reward not in [each.reward for each in parts])]
            suite = RewardSuite(mine, renormalise=renormalise)
            self._routes[route] = _Route(suite, tuple(self._lane_of(part) for part in mine))

        for part in [*default, *watched]:
            self._states[part.reward.name] = part.reward
        if default:
            add(DEFAULT, default)
        for chosen in choices:
            refuse_code(chosen, "a sample")
            parts = [Part(load(each.name, **each.args), weight=each.weight) for each in chosen]
            for each, part in zip(chosen, parts, strict=True):
                refuse_server(part.reward, [known.reward for known in default])
                if part.reward not in self._states.values():
                    self._states[identity(each.name, each.args)] = part.reward
            add(route_of(chosen), parts)
        if not self._routes:
            raise RewardError("there are no rewards: neither the run names any, nor do the samples")
        self.names = tuple(dict.fromkeys(name for route in self._routes.values() for name in route.suite.names))
        """Of all routes. Rewards of one name and different arguments share a column: no answer has two of them."""
        self._lanes = [RewardWorker(part, cache) for part in self._parts]
        self._conductors = DaemonPool(2 * len(self._lanes), "routed-rewards")

    @property
    def weights(self) -> dict[str, float]:
        """What each value is multiplied with, for the names that have one weight wherever they are asked for."""
        found: dict[str, set[float]] = {name: set() for name in self.names}
        for route in self._routes.values():
            for name, weight in route.suite.weights.items():
                found[name].add(weight)
        return {name: weights.pop() for name, weights in found.items() if len(weights) == 1}

    @property
    def uniform(self) -> bool:
        """Whether all answers are scored alike."""
        return len(self._routes) == 1

    @property
    def compares(self) -> bool:
        """Whether batches must hold whole groups."""
        return any(route.suite.compares for route in self._routes.values())

    def score(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Every reward's values and statuses, and the `total` of each answer."""
        return self.submit(batch, context).result()

    def submit(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> PendingRoutes:
        """Begin to score a batch and return at once. A batch holds whole groups if any reward compares answers.

        Raises:
            RewardError: an answer asks for rewards that were not among the choices.
        """
        batch, context = list(batch), context or RewardContext()
        routes = [self._checked_route(item) for item in batch]
        # What is asked for is no part of an answer: not of what a reward sees, nor of the key of a cached score.
        bare = [replace(item, metadata={k: v for k, v in item.metadata.items() if k != ASKED}) for item in batch]
        columns: dict[int, tuple[list[int], Future[RewardOutput]]] = {}
        for number, lane in enumerate(self._lanes):
            rows = [row for row, route in enumerate(routes) if number in self._routes[route].lanes]
            if rows:
                call = partial(lane.score, [bare[row] for row in rows], context)
                columns[number] = (rows, self._conductors.submit(call))
        return PendingRoutes(self, bare, routes, columns, time.perf_counter())

    def join(self, scores: Sequence[PendingRoutes]) -> RewardOutput:
        """Wait for several batches, and give them as one, in order."""
        starts = np.cumsum([0, *(len(pending.batch) for pending in scores)]).tolist()
        parts = []
        for name, route in self._routes.items():
            pendings = [pending.of(name, route) for pending in scores]
            rows = [
                start + row
                for start, pending in zip(starts, scores, strict=False)  # the last start is the end
                for row in pending.rows(name)
            ]
            if rows:
                parts.append((rows, route.suite.join(pendings)))
        output = _merged(parts, starts[-1])
        started = min((pending.started for pending in scores), default=time.perf_counter())
        return replace(output, seconds=time.perf_counter() - started)

    def counts(self, output: RewardOutput) -> dict[str, dict[str, int]]:
        """How many of the answers that a reward was asked for had which status: {reward: {"ok": 10, "error": 2}}."""
        asked = {
            name: [s for s in output.status.get(name, []) if s is not Status.NOT_APPLICABLE] for name in self.names
        }
        return {name: dict(Counter(status.value for status in column)) for name, column in asked.items() if column}

    def state_dict(self) -> dict[str, Any]:
        """JSON-like state of the rewards that remember something between batches, each once."""
        states = {name: reward.state_dict() for name, reward in self._states.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        if strange := sorted(state.keys() - self._states.keys()):
            raise RewardError(f"the saved state is of {', '.join(strange)}, which nobody asks for")
        for name, reward in self._states.items():
            reward.load_state_dict(state.get(name, {}))

    def close(self) -> None:
        """End the threads; nothing can be scored after that."""
        self._conductors.close()
        for lane in self._lanes:
            lane.close()
        for route in self._routes.values():
            route.suite.close()

    def _lane_of(self, part: Part) -> int:
        """The lane that calls this part's reward: the first part that has it says how it is called."""
        for number, known in enumerate(self._parts):
            if known.reward is part.reward:
                return number
        self._parts.append(part)
        return len(self._parts) - 1

    def _checked_route(self, item: RewardInput) -> str:
        chosen = item.metadata.get(ASKED, ())
        route = route_of(chosen)
        if route in self._routes:
            return route
        names = ", ".join(each.name for each in chosen)
        raise RewardError(
            f"answer {item.id!r} asks for {names} with arguments or weights that were not among the choices: "
            "give all samples to distinct_choices"
            if chosen
            else f"the sample of answer {item.id!r} asks for no rewards, and the run has none: name some in 'rewards'"
        )


@dataclass(frozen=True)
class PendingRoutes:
    """A batch that is being scored."""

    rewards: RoutedRewards
    batch: Sequence[RewardInput]
    routes: Sequence[str]  # one an answer
    columns: Mapping[int, tuple[Sequence[int], Future[RewardOutput]]]  # by lane: the answers it scores, and the scores
    started: float

    def result(self) -> RewardOutput:
        """Wait for all rewards, and add them up."""
        return self.rewards.join([self])

    def rows(self, route: str) -> list[int]:
        """The answers that take a route."""
        return [row for row, each in enumerate(self.routes) if each == route]

    def of(self, name: str, route: _Route) -> PendingScores:
        """The scores of the answers that take one route, for its suite to add up."""
        rows = self.rows(name)
        columns: list[Future[RewardOutput]] = []
        for lane in route.lanes if rows else ():
            among, scores = self.columns[lane]
            place = {row: place for place, row in enumerate(among)}
            done: Future[RewardOutput] = Future()
            done.set_result(rows_of(scores.result(), [place[row] for row in rows]))
            columns.append(done)
        if not rows:
            columns = [_nothing(part.reward.name) for part in route.suite.parts]
        return PendingScores(route.suite, [self.batch[row] for row in rows], columns, self.started)


def _nothing(name: str) -> Future[RewardOutput]:
    """The scores of no answers."""
    done: Future[RewardOutput] = Future()
    done.set_result(RewardOutput({name: np.zeros(0, np.float32)}, {name: []}, []))
    return done


def _merged(parts: Sequence[tuple[Sequence[int], RewardOutput]], size: int) -> RewardOutput:
    """One output of several that hold its rows; what a row lacks was not asked for there."""
    names = [*dict.fromkeys(name for _, output in parts for name in output.values if name != TOTAL), TOTAL]
    values = {name: np.full(size, math.nan, np.float32) for name in names}
    status = {name: [Status.NOT_APPLICABLE] * size for name in names}
    detail: list[dict[str, Any]] = [{} for _ in range(size)]
    events: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    failures: list[dict[str, Failure]] = [{} for _ in range(size)]
    for rows, output in parts:
        for name, column in output.values.items():
            values[name][list(rows)] = column
        for place, row in enumerate(rows):
            for name, statuses in output.status.items():
                status[name][row] = statuses[place]
            detail[row], events[row], failures[row] = output.detail[place], output.events[place], output.failures[place]
    return RewardOutput(values, status, detail, events, failures=failures)


# Which rewards samples ask for themselves: told apart, loaded once, and never code.


Choices: TypeAlias = tuple[RewardChoice, ...]
DEFAULT = ""
"""The route of samples that ask for nothing themselves."""


def distinct_choices(samples: Iterable[Sample]) -> list[Choices]:
    """The choices of rewards that samples make themselves, each once, in order of appearance.

    Raises:
        RewardError: a sample asks for a file of code, or for arguments that are no plain values.
    """
    found: dict[str, Choices] = {}
    for sample in samples:
        if sample.rewards:
            refuse_code(sample.rewards, f"sample {sample.id!r}")
            found.setdefault(route_of(sample.rewards), sample.rewards)
    return list(found.values())


class SharedLoader:
    """As `registry.load`, with one instance for equal names and arguments."""

    def __init__(self) -> None:
        self._loaded: dict[str, Reward] = {}

    def __call__(self, name: str, **args: Any) -> Reward:
        """The reward; loaded at the first call."""
        key = identity(name, args)
        if key not in self._loaded:
            self._loaded[key] = registry.load(name, **args)
        return self._loaded[key]


def refuse_code(chosen: Choices, who: str) -> None:
    """A data set must not run code: it may come from anywhere."""
    for each in chosen:
        if any(mark in each.name for mark in (".py", ":", "/", "\\")):
            raise RewardError(
                f"{who} asks for the reward {each.name!r}: data sets may ask for rewards by name alone, not for code "
                "of a file. Name it in the run's own 'rewards'"
            )


def refuse_server(reward: Reward, known: Sequence[Reward]) -> None:
    """A data set must not say where answers, and the key of a judge, are sent; it may ask for what the run names.

    Raises:
        RewardError: the reward waits for a server and is none of those `known`.
    """
    if reward.concurrency > 1 and not any(reward is each for each in known):
        raise RewardError(
            f"samples ask for the reward {reward.name!r}, which sends answers to a server: name it in the run's own "
            "'rewards', with the same arguments (and weight 0, if only those samples are to be scored by it)"
        )


def route_of(chosen: Choices) -> str:
    """Equal for equal choices, in whatever order."""
    if not chosen:
        return DEFAULT
    return json.dumps(sorted([identity(each.name, each.args), each.weight] for each in chosen))


def identity(name: str, args: Mapping[str, Any]) -> str:
    """What tells rewards apart: the name, and the arguments as JSON.

    Raises:
        RewardError: the arguments are no JSON.
    """
    if not args:
        return name
    try:
        return f"{name} {json.dumps(args, sort_keys=True)}"
    except (TypeError, ValueError) as err:
        raise RewardError(f"{name}: a sample's arguments of a reward are plain values and lists: {err}") from err
