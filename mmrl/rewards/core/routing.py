"""Rewards per sample: each sample may name its rewards, so that one run mixes tasks (V-Triune, arXiv:2505.18129).

    rewards = RoutedRewards(default=[WeightedReward(load("maths"))], choices=distinct_choices(samples))
    rewards.score(inputs).values  # {"maths": ..., "box_iou": ..., "total": ...}: NaN where a reward does not apply

`RoutedRewards` has the interface of a `RewardSuite`. Each distinct choice of rewards has its suite, which computes the
`total` of its answers; equal rewards (name and arguments) are loaded once, and called once for all answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards.core import registry
from mmrl.rewards.core.cache import ScoreCache
from mmrl.rewards.core.cascade import submit_parts
from mmrl.rewards.core.executor import BATCHES_AT_ONCE, DaemonPool, RewardWorker, WeightedReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import (
    SAMPLE_REWARDS,
    RewardContext,
    RewardInput,
    RewardOutput,
    merge_outputs,
    select_rows,
)
from mmrl.rewards.core.suite import RewardSuite, Scorer

Choices: TypeAlias = tuple[RewardChoice, ...]
ScoredRows: TypeAlias = tuple[Sequence[int], Future[RewardOutput]]
"""Rows of a batch, and their scores by one reward."""
DEFAULT = ""
"""The route of samples that name no rewards."""


@dataclass(frozen=True)
class _Route:
    """The rewards of one choice."""

    suite: RewardSuite  # computes the totals
    workers: tuple[int, ...]  # which compute the scores, one per reward of the suite


class RoutedRewards(Scorer):
    """The rewards of mixed tasks: each answer is scored by those that its sample names, or else by the run's."""

    def __init__(
        self,
        default: Sequence[WeightedReward],
        choices: Iterable[Choices],
        *,
        load: Callable[..., Reward] | None = None,
        trusted: Iterable[Choices] = (),
        monitored: Sequence[WeightedReward] = (),
        renormalise: bool = False,
        min_valid_share: float = 0.0,
        cache: ScoreCache | None = None,
    ) -> None:
        """
        Args:
            default: the rewards of samples that name none; may be empty if there are no such samples.
            choices: all that samples name, as `distinct_choices` returns them.
            load: builds a reward; the `SharedLoader` that `default` was built with, so that equal rewards are shared.
            trusted: choices that the user makes and not a data set, so that they may name code and servers.
            monitored: rewards of weight 0 that score every answer as well.
            renormalise: the total of an answer with failed rewards is the sum of the others, scaled up by the weight
                of those that failed, instead of NaN.
            min_valid_share: in [0, 1]; `check_valid_share` raises if fewer answers have a total.
            cache: the cache of scores.

        Raises:
            RewardError: a reward cannot be loaded, stands twice in one choice, or a sample names a file of code, or a
                reward of a server that the run does not name (also as an argument of another reward).
        """
        if weighty := [part.reward.name for part in monitored if part.weight]:
            raise RewardError(f"monitored rewards have the weight 0, unlike {', '.join(weighty)}")
        load = load or SharedLoader()
        self.min_valid_share = min_valid_share
        self._parts: list[WeightedReward] = []  # one per reward instance, with the settings of its calls
        self._states: dict[str, Reward] = {}
        self._routes: dict[str, _Route] = {}

        def add(route: str, parts: Sequence[WeightedReward]) -> None:
            used = [part.reward for part in parts]
            every = [*parts, *(part for part in monitored if part.reward not in used)]
            suite = RewardSuite(every, renormalise=renormalise)
            self._routes[route] = _Route(suite, tuple(self._worker_index(part) for part in every))

        for part in [*default, *monitored]:
            self._states[part.reward.name] = part.reward
        if default:
            add(DEFAULT, default)
        own = {route_key(chosen) for chosen in trusted}
        for chosen in choices:
            users = route_key(chosen) in own
            for each in () if users else chosen:
                registry.check_no_code(each.name, "a sample")
            with nullcontext() if users else registry.named_by_data("a sample"):
                parts = [WeightedReward(load(each.name, **each.args), weight=each.weight) for each in chosen]
            for each, part in zip(chosen, parts, strict=True):
                if not users and not any(part.reward is known.reward for known in default):
                    registry.check_no_server(part.reward, "a sample")
                if part.reward not in self._states.values():
                    self._states[reward_key(each.name, each.args)] = part.reward
            add(route_key(chosen), parts)
        if not self._routes:
            raise RewardError("there are no rewards: neither the run names any, nor do the samples")
        self.names = tuple(dict.fromkeys(name for route in self._routes.values() for name in route.suite.names))
        """Names over all routes. Rewards of one name and different arguments share a column: no answer has both."""
        self._workers = [RewardWorker(part, cache) for part in self._parts]
        self._threads = DaemonPool(BATCHES_AT_ONCE * len(self._workers), "routed-rewards")

    @property
    def weights(self) -> dict[str, float]:
        """The factor of each value in the total, for the names that have one weight in all routes."""
        found: dict[str, set[float]] = {name: set() for name in self.names}
        for route in self._routes.values():
            for name, weight in route.suite.weights.items():
                found[name].add(weight)
        return {name: weights.pop() for name, weights in found.items() if len(weights) == 1}

    @property
    def uniform(self) -> bool:
        """True if all answers are scored by the same rewards."""
        return len(self._routes) == 1

    @property
    def needs_full_groups(self) -> bool:
        return any(route.suite.needs_full_groups for route in self._routes.values())

    def submit(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> PendingRoutes:
        """Start to score a batch and return at once. A batch holds whole groups if `needs_full_groups`.

        Raises:
            RewardError: an answer's sample names rewards that were not among the choices.
        """
        batch, context = list(batch), context or RewardContext()
        routes = [self._checked_route(item) for item in batch]
        # The names of rewards are not content of an answer: neither rewards nor the keys of cached scores see them.
        bare = [
            replace(item, metadata={k: v for k, v in item.metadata.items() if k != SAMPLE_REWARDS}) for item in batch
        ]
        columns: dict[int, list[ScoredRows]] = {number: [] for number in range(len(self._workers))}
        apart = self._submit_cascade(bare, routes, context, columns)
        for number, worker in enumerate(self._workers):
            used = (row for row, route in enumerate(routes) if number in self._routes[route].workers)
            if rows := [row for row in used if row not in apart]:
                call = partial(worker.score, [bare[row] for row in rows], context)
                columns[number].append((rows, self._threads.submit(call)))
        return PendingRoutes(self, bare, routes, columns, time.perf_counter())

    def join(self, scores: Sequence[PendingRoutes]) -> RewardOutput:
        batch = [item for pending in scores for item in pending.batch]
        chosen = [route for pending in scores for route in pending.routes]
        starts = np.cumsum([0, *(len(pending.batch) for pending in scores)]).tolist()
        columns = []  # one per worker, of all rows
        for number, worker in enumerate(self._workers):
            scored = []
            for start, pending in zip(starts, scores, strict=False):  # the last start is the end
                scored += [([start + row for row in rows], call.result()) for rows, call in pending.columns[number]]
            columns.append(merge_outputs(scored, len(batch), worker.reward.name))
        parts = []
        for name, route in self._routes.items():
            if rows := [row for row, each in enumerate(chosen) if each == name]:
                outputs = [select_rows(columns[worker], rows) for worker in route.workers]
                parts.append((rows, route.suite.aggregate([batch[row] for row in rows], outputs)))
        output = merge_outputs(parts, len(batch))
        started = min((pending.started for pending in scores), default=time.perf_counter())
        return replace(output, seconds=time.perf_counter() - started)

    def close(self) -> None:
        super().close()
        for route in self._routes.values():
            route.suite.close()

    def _submit_cascade(
        self,
        batch: Sequence[RewardInput],
        routes: Sequence[str],  # one per answer
        context: RewardContext,
        columns: Mapping[int, list[ScoredRows]],  # is added to
    ) -> set[int]:
        """Start to score the answers to which the run's rewards apply if these are a cascade; return their rows."""
        route = self._routes.get(DEFAULT)
        if route is None or not any(part.after for part in route.suite.parts):
            return set()
        rows = [row for row, each in enumerate(routes) if each == DEFAULT]
        if rows:
            workers = [self._workers[number] for number in route.workers]
            items = [batch[row] for row in rows]
            scores = submit_parts(route.suite.parts, workers, items, context, self._threads)
            for number, each in zip(route.workers, scores, strict=True):
                columns[number].append((rows, each))
        return set(rows)

    def _worker_index(self, part: WeightedReward) -> int:
        """Return the index of the worker of a reward; the first part with a reward has the settings of its calls."""
        for number, known in enumerate(self._parts):
            if known.reward is part.reward:
                return number
        self._parts.append(part)
        return len(self._parts) - 1

    def _checked_route(self, item: RewardInput) -> str:
        chosen = item.metadata.get(SAMPLE_REWARDS, ())
        route = route_key(chosen)
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
    routes: Sequence[str]  # one per answer
    columns: Mapping[int, Sequence[ScoredRows]]  # {worker: what it scores}
    started: float

    def result(self) -> RewardOutput:
        """Wait for all rewards, and return their scores and totals."""
        return self.rewards.join([self])


class SharedLoader:
    """A loader that builds one reward instance for equal names and arguments; else as `registry.load`."""

    def __init__(self) -> None:
        self._loaded: dict[str, Reward] = {}

    def __call__(self, name: str, **args: Any) -> Reward:
        """Return the reward; it is loaded at the first call."""
        key = reward_key(name, args)
        if key not in self._loaded:
            self._loaded[key] = registry.load(name, **args)
        return self._loaded[key]

    def put(self, name: str, reward: Reward) -> None:
        """Make `reward` the one that this name, without arguments, loads."""
        self._loaded[reward_key(name, {})] = reward


def distinct_choices(samples: Iterable[Sample], trusted: Iterable[Choices] = ()) -> list[Choices]:
    """Return the different choices of rewards that samples make, in order of appearance.

    Choices that are `trusted` are those of the user, and may name code.

    Raises:
        RewardError: a sample names a file of code, or arguments that are not JSON values.
    """
    own = {route_key(chosen) for chosen in trusted}
    found: dict[str, Choices] = {}
    for sample in samples:
        if sample.rewards:
            key = route_key(sample.rewards)
            for each in () if key in own else sample.rewards:
                registry.check_no_code(each.name, f"sample {sample.id!r}")
            found.setdefault(key, sample.rewards)
    return list(found.values())


def route_key(chosen: Choices) -> str:
    """Return a string that is equal for equal choices, in any order."""
    if not chosen:
        return DEFAULT
    return json.dumps(sorted([reward_key(each.name, each.args), each.weight] for each in chosen))


def reward_key(name: str, args: Mapping[str, Any]) -> str:
    """Return a string that identifies a reward: its name, and its arguments as JSON.

    Raises:
        RewardError: the arguments are not JSON values.
    """
    if not args:
        return name
    try:
        return f"{name} {json.dumps(args, sort_keys=True)}"
    except (TypeError, ValueError) as err:
        raise RewardError(f"{name}: a sample's arguments of a reward are plain values and lists: {err}") from err
