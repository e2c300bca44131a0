"""Several rewards of one batch: scored concurrently, then aggregated into a total."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.cache import ScoreCache
from mmrl.rewards.core.cascade import check_cascade, stopped_value, submit_parts
from mmrl.rewards.core.executor import BATCHES_AT_ONCE, DaemonPool, RewardWorker, WeightedReward
from mmrl.rewards.core.reward import Reward, TrainerMethods
from mmrl.rewards.core.reward_aggregation import Aggregation, aggregate, gated, withheld
from mmrl.rewards.core.reward_errors import Failure, RewardError, Status
from mmrl.rewards.core.reward_io import TOTAL, RewardContext, RewardInput, RewardOutput, Scope, merge_outputs

_severity = (Status.OK, Status.STOPPED, Status.INVALID, Status.TIMEOUT, Status.ERROR)


class TooFewScored(RuntimeError):
    """Too many answers of a batch could not be scored. The message counts the failures by kind."""


class Scorer(ABC):
    """The interface of `RewardSuite` and `RoutedRewards`. `join` takes the results of `submit` of the same object."""

    names: tuple[str, ...]
    """Names of the rewards, in order, without the further scores that a reward may give besides its main one."""
    min_valid_share: float
    _states: Mapping[str, Reward]  # by a name that is equal in all processes
    _workers: Sequence[RewardWorker]
    _threads: DaemonPool

    @property
    @abstractmethod
    def needs_full_groups(self) -> bool:
        """True if every batch must hold whole groups, as a reward or the aggregation compares answers."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models of the run that rewards compute with, each once."""
        return tuple(dict.fromkeys(name for worker in self._workers for name in worker.reward.models))

    @property
    def painters(self) -> tuple[str, ...]:
        """The names of the models of the run that rewards ask for pictures, each once."""
        return tuple(dict.fromkeys(name for worker in self._workers for name in worker.reward.painters))

    @property
    def denoisers(self) -> tuple[str, ...]:
        """The names of the models of the run that rewards ask for velocities, each once."""
        return tuple(dict.fromkeys(name for worker in self._workers for name in worker.reward.denoisers))

    @abstractmethod
    def submit(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> Any:
        """Start to score a batch and return at once. A batch holds whole groups if `needs_full_groups`."""

    @abstractmethod
    def join(self, scores: Sequence[Any]) -> RewardOutput:
        """Wait for several batches, and return them as one, in order."""

    def score(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Return every reward's values and statuses, and the total. Never raises because of an answer or a scorer."""
        return self.join([self.submit(batch, context)])

    def counts(self, output: RewardOutput) -> dict[str, dict[str, int]]:
        """Return the number of answers that a reward applies to by status: {reward: {"ok": 10, "error": 2}}."""
        applied = {
            name: [status for status in output.status.get(name, []) if status is not Status.NOT_APPLICABLE]
            for name in self.names
        }
        return {name: dict(Counter(status.value for status in column)) for name, column in applied.items() if column}

    def failures(self, output: RewardOutput) -> dict[str, dict[str, int]]:
        """Return the number of unscored answers by reward and kind: {"judge": {"http_503": 3, "timeout": 1}}."""
        kinds = {name: Counter(row[name].kind for row in output.failures if name in row) for name in self.names}
        return {name: dict(counted) for name, counted in kinds.items() if counted}

    def valid_share(self, output: RewardOutput) -> float:
        """Return the share of answers with a known total, in [0, 1]; 1 for an empty batch."""
        total = output.values[TOTAL]
        return float(np.isfinite(total).mean()) if len(total) else 1.0

    def check_valid_share(self, output: RewardOutput) -> None:
        """Raise `TooFewScored` unless at least `min_valid_share` of the answers have a total."""
        share = self.valid_share(output)
        if share < self.min_valid_share:
            reasons = sorted({str(text) for row in output.detail for text in row.values() if text})[:3]
            raise TooFewScored(
                f"only {share:.0%} of the answers could be scored (expected at least {self.min_valid_share:.0%}); "
                f"statuses: {self.counts(output)}; failures by kind: {self.failures(output)}; "
                f"reasons: {'; '.join(reasons) or 'none given'}"
            )

    @property
    def learns(self) -> bool:
        """True if a reward changes between the iterations of a run."""
        return any(reward.learns for reward in self._states.values())

    def learn(self, items: Sequence[RewardInput]) -> dict[str, float]:
        """Let the rewards that learn do so from an iteration's answers; return {"NAME/METRIC": value}."""
        return {
            f"{name}/{metric}": value
            for name, reward in self._states.items()
            if reward.learns
            for metric, value in reward.learn(items).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-like state of the rewards that keep any between batches, each once."""
        states = {name: reward.state_dict() for name, reward in self._states.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        if strange := sorted(state.keys() - self._states.keys()):
            raise RewardError(f"the saved state is of {', '.join(strange)}, which neither the run nor a sample names")
        for name, reward in self._states.items():
            reward.load_state_dict(state.get(name, {}))

    def close(self) -> None:
        """End the threads; nothing can be scored after that."""
        self._threads.close()
        for worker in self._workers:
            worker.close()


def _weighted(part: Any) -> WeightedReward:
    if isinstance(part, WeightedReward):
        return part
    if isinstance(part, tuple | list) and len(part) == 2 and isinstance(part[0], Reward):
        return WeightedReward(*part)
    raise RewardError(f"a suite is made of pairs (reward, weight), such as (load('maths'), 1.0), not of {part!r:.60}")


class RewardSuite(TrainerMethods, Scorer):
    """Several rewards that score a batch concurrently, and their total.

        suite = RewardSuite([(load("shapeworld"), 1.0), WeightedReward(load("judge", ...), 0.5, deadline_s=20)])
        suite.score(batch).values  # {"shapeworld": ..., "judge": ..., "total": ...}

        scores = suite.submit(batch)  # returns at once; meanwhile, generate the next batch
        scores.result()

    `total` is the weighted sum, NaN where any of its terms is NaN (but see `renormalise`). A reward whose direction is
    "lower" is subtracted. A reward of weight 0 is measured, and not part of the total. With a weight below 0 an invalid
    answer has the best value of the reward, the worst for its total. A reward with `counts_if` is
    part of it only in answers whose other reward reaches a threshold. A reward with `after` scores only the answers
    that earlier ones let through (`mmrl.rewards.core.cascade`).
    """

    def __init__(
        self,
        parts: Sequence[WeightedReward | tuple[Reward, float]],
        *,
        aggregation: Aggregation = "sum",
        renormalise: bool = False,
        min_valid_share: float = 0.0,
        cache: ScoreCache | None = None,
    ) -> None:
        """
        Args:
            parts: the rewards, with their weights.
            aggregation: `sum` of raw rewards, `gdpo` (the sum of each reward's z-score in its group) or `pareto`
                (minus the number of Pareto fronts that dominate the answer's front).
            renormalise: the total of an answer with failed rewards is the sum of the others, scaled up by the weight
                of those that failed, instead of NaN.
            min_valid_share: in [0, 1]; `check_valid_share` raises if fewer answers have a total.
            cache: the cache of scores.
        """
        self.parts = [_weighted(part) for part in parts]
        self.names = tuple(part.reward.name for part in self.parts)
        self._states = {part.reward.name: part.reward for part in self.parts}
        self.weights = {part.reward.name: float(part.weight) * part.reward.spec.sign for part in self.parts}
        """The factor of each value in the total: negative for a reward whose direction is "lower"."""
        self._check_names_and_weights()
        self._check_conditions(aggregation)
        check_cascade(self.parts)
        if renormalise and aggregation != "sum":
            raise RewardError(f"renormalise goes with the aggregation 'sum', not with {aggregation!r}")
        self._aggregation, self._renormalise, self.min_valid_share = aggregation, renormalise, min_valid_share
        self._floor = self._lowest_total()
        self._workers = [RewardWorker(part, cache) for part in self.parts]
        self._threads = DaemonPool(BATCHES_AT_ONCE * len(self.parts), "rewards")

    async def ascore(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Score as `score` does, for callers that have an event loop."""
        scores = self.submit(batch, context)
        await asyncio.gather(*map(asyncio.wrap_future, scores.columns), return_exceptions=True)
        return scores.result()

    def submit(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> PendingScores:
        batch, context = list(batch), context or RewardContext()
        if odd := next((type(item).__name__ for item in batch if not isinstance(item, RewardInput)), None):
            raise RewardError(f"a suite scores a list of RewardInput, and one of its items is a {odd}")
        columns = submit_parts(self.parts, self._workers, batch, context, self._threads)
        return PendingScores(self, batch, columns, time.perf_counter())

    def join(self, scores: Sequence[PendingScores]) -> RewardOutput:
        batch = [item for pending in scores for item in pending.batch]
        ends = np.cumsum([len(pending.batch) for pending in scores])
        rows = [range(end - len(pending.batch), end) for pending, end in zip(scores, ends.tolist(), strict=True)]
        columns = [
            merge_outputs(list(zip(rows, [p.columns[i].result() for p in scores], strict=True)), len(batch), name)
            for i, name in enumerate(self.names)
        ]
        started = min((pending.started for pending in scores), default=time.perf_counter())
        return replace(self.aggregate(batch, columns), seconds=time.perf_counter() - started)

    @property
    def needs_full_groups(self) -> bool:
        return self._aggregation != "sum" or any(part.reward.scope is not Scope.SAMPLE for part in self.parts)

    def _check_names_and_weights(self) -> None:
        if repeated := [name for name, n in Counter(self.names).items() if n > 1]:
            raise RewardError(
                f"the suite has two rewards called {', '.join(repeated)}, and their scores could not be told apart: "
                "rename a function, or derive a class in a file with another `name`"
            )
        if TOTAL in self.names:
            raise RewardError(f"no reward may be called {TOTAL!r}: that is the name of their weighted sum")
        if not any(self.weights.values()):
            raise RewardError("no reward of the suite has a weight other than 0: the total would always be 0")

    def _check_conditions(self, aggregation: Aggregation) -> None:
        conditional = [(part.reward.name, part.counts_if.reward) for part in self.parts if part.counts_if is not None]
        if conditional and aggregation != "sum":
            raise RewardError(f"counts_if goes with the aggregation 'sum', not with {aggregation!r}")
        for name, outcome in conditional:
            if outcome == name or outcome not in self.names:
                others = ", ".join(each for each in self.names if each != name) or "none"
                raise RewardError(
                    f"{name}: counts_if names {outcome}, which is no other reward of the suite ({others})"
                )

    def _lowest_total(self) -> float:
        """Return the lowest possible weighted sum, the total of an answer that fails a gate; NaN without gates."""
        if not any(part.gate is not None for part in self.parts):
            return math.nan
        if self._aggregation != "sum":
            raise RewardError(f"gates go with the aggregation 'sum', not with {self._aggregation!r}")
        parts = [part for part in self.parts if part.weight]
        edges = {
            part.reward.name: sorted(self.weights[part.reward.name] * e for e in part.reward.range) for part in parts
        }
        edges |= {p.reward.name: [min(edges[p.reward.name][0], 0.0), 0.0] for p in parts if p.counts_if is not None}
        if open_ended := [name for name, (low, _) in edges.items() if not math.isfinite(low)]:
            raise RewardError(
                f"a gate gives the lowest total there is, but {', '.join(open_ended)} has no lowest value: "
                "leave the gate out, or choose a reward with a range"
            )
        lowest = sum(low for low, _ in edges.values())
        if self._renormalise:  # a row with a single known term is scaled up to the weight of all
            whole = sum(abs(self.weights[name]) for name in edges)
            lowest = min(lowest, *(low * whole / abs(self.weights[name]) for name, (low, _) in edges.items()))
        return lowest

    def aggregate(self, batch: Sequence[RewardInput], outputs: Sequence[RewardOutput]) -> RewardOutput:
        """Return the outputs of all rewards as one, with the total."""
        merged = RewardOutput({}, {}, [{} for _ in batch], events=[[] for _ in batch], failures=[{} for _ in batch])
        for part, output in zip(self.parts, outputs, strict=True):
            self._add(merged, part.reward, _with_worst_values(part, output))
        for part, output in zip(self.parts, outputs, strict=True):
            self._add_events(merged, part, output)
        total = self._total(merged, [item.group for item in batch])
        return RewardOutput(
            values=merged.values | {TOTAL: total.astype(np.float32)},
            status=merged.status | {TOTAL: self._total_status(merged, total)},
            detail=merged.detail,
            events=merged.events,
            failures=merged.failures,
        )

    def _total(self, merged: RewardOutput, groups: list[int]) -> NDArray[np.float64]:
        columns = np.stack([self._counted(p, merged.values, merged.values[p.reward.name]) for p in self.parts], axis=1)
        total = aggregate(self._aggregation, columns, list(self.weights.values()), groups, self._renormalise)
        gates = [part for part in self.parts if part.gate is not None]
        if not gates:
            return total
        signs = np.array([part.reward.spec.sign for part in gates])
        values = np.stack([merged.values[part.reward.name].astype(np.float64) for part in gates], axis=1)
        thresholds = np.array([part.gate for part in gates], np.float32).astype(np.float64)  # rounded as values are
        return gated(total, values * signs, thresholds * signs, self._floor)

    def _total_status(self, merged: RewardOutput, total: NDArray[np.float64]) -> list[Status]:
        """Return the worst status of each row; `OK` where that is a failure, but the total is known."""
        outcomes = {part.counts_if.reward for part in self.parts if part.counts_if is not None}
        names = ((part.reward.name, part.weight or part.gate is not None) for part in self.parts)
        parts = [name for name, decides in names if decides or name in outcomes]
        rows = zip(*(merged.status[name] for name in parts), strict=True)
        worst = [max(row, key=_severity.index) for row in rows]
        failed = (Status.ERROR, Status.TIMEOUT)
        return [
            Status.OK if math.isfinite(value) and status in failed else status
            for value, status in zip(total, worst, strict=True)
        ]

    def _add(self, into: RewardOutput, reward: Reward, output: RewardOutput) -> None:
        for name in output.values:
            if name in into.values or name == TOTAL or (name in self.names and name != reward.name):
                raise RewardError(f"{reward.name} gives scores called {name!r}, a name that is already taken")
        into.values.update(output.values)
        into.status.update(output.status)
        for row, (detail, failures) in enumerate(zip(output.detail, output.failures, strict=True)):
            into.detail[row].update(detail)
            into.failures[row].update(failures)

    def _add_events(self, into: RewardOutput, part: WeightedReward, output: RewardOutput) -> None:
        """Add the events of a reward with a weight, which are terms of the total as values are."""
        counted = self._counted(part, into.values, np.ones(len(into.detail)))
        if weight := self.weights[part.reward.name]:
            for row, events in enumerate(output.events):
                if counted[row] == 1:
                    into.events[row].extend((decision, weight * value) for decision, value in events)

    def _counted(self, part: WeightedReward, values: Mapping[str, Any], own: NDArray[Any]) -> NDArray[np.float64]:
        """Return a reward's [B] values as they enter the total: 0 where its condition is not satisfied."""
        own = own.astype(np.float64)
        if part.counts_if is None:
            return own
        name, least = part.counts_if.reward, float(np.float32(part.counts_if.at_least))  # rounded as values are
        sign = self._states[name].spec.sign
        return withheld(own, values[name].astype(np.float64) * sign, least * sign)


def _with_worst_values(part: WeightedReward, output: RewardOutput) -> RewardOutput:
    """Return the scores of a part in which invalid answers have the worst value, which its weight's sign decides.

    A reward by itself gives them the worst value for a weight above 0, which below 0 is the best. Without such a value
    they are not scored.
    """
    name = part.reward.name
    rows = [row for row, status in enumerate(output.status[name]) if status is Status.INVALID]
    if part.weight >= 0 or not rows:
        return output
    worst = stopped_value(part.reward, part.weight)
    column = output.values[name].copy()
    column[rows] = worst if math.isfinite(worst) else math.nan
    output = replace(output, values=output.values | {name: column})
    if math.isfinite(worst):
        return output
    status, detail = list(output.status[name]), [dict(each) for each in output.detail]
    failures = [dict(each) for each in output.failures]
    for row in rows:
        text = f"{name} has no worst value for an invalid answer with a weight below 0: {detail[row].get(name)}"
        status[row], detail[row][name], failures[row][name] = Status.ERROR, text, Failure("unbounded")
    return replace(output, status=output.status | {name: status}, detail=detail, failures=failures)


@dataclass(frozen=True)
class PendingScores:
    """A batch that is being scored."""

    suite: RewardSuite
    batch: Sequence[RewardInput]
    columns: Sequence[Future[RewardOutput]]  # one per reward
    started: float

    def result(self) -> RewardOutput:
        """Wait for all rewards, and return their scores and totals."""
        return self.suite.join([self])
