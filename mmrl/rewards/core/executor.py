"""Calls of one reward of a suite: in batches, concurrently for rewards that wait for a server, with retries after
transient failures, and never past a deadline."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mmrl.rewards.core.cache import ScoreCache, cacheable, score_key
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import Failure, RewardError, ScoringFailed, Status, failure_record
from mmrl.rewards.core.reward_io import (
    RewardContext,
    RewardInput,
    RewardOutput,
    Scope,
    merge_outputs,
    rows_by_group,
    select_rows,
)

MAX_PAUSE_S = 30.0
BATCHES_AT_ONCE = 16
"""Batches of a reward whose scores may be waited for at once; its `concurrency` limits the calls that run."""
IDLE_S = 5.0
"""Seconds after which a thread of a `DaemonPool` without work ends."""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Condition:
    """A threshold that another reward of the same answer must reach."""

    reward: str
    """The other reward's `name`."""
    at_least: float
    """For rewards whose direction is "lower": at most."""


@dataclass(frozen=True)
class WeightedReward:
    """A reward of a suite, with its weight and the settings of its calls."""

    reward: Reward
    weight: float = 1.0
    """0: measured, and not part of the total."""
    gate: float | None = None
    """An answer whose score is worse than this value gets the lowest possible total."""
    counts_if: Condition | None = None
    """The reward is added to the total of answers that satisfy this, and 0 to that of all others."""
    after: Mapping[str, float] = field(default_factory=dict)
    """{earlier reward: the value that it must reach (at most, for a direction of "lower")}: all other answers get the
    worst value with the status "stopped", and are not scored."""
    retries: int = 3
    """Further attempts at answers whose scoring failed with a transient failure."""
    pause_s: float = 0.5
    """Seconds before the first retry; each further retry waits twice as long."""
    deadline_s: float | None = None
    """Seconds after which a call is abandoned: its answers get the status "timeout", without a retry. The call itself
    runs on until it ends, and the next one may run beside it."""
    batch_size: int | None = None
    """Answers per call; None means the reward's `batch_size`."""
    concurrency: int | None = None
    """Concurrent calls; None means the reward's `concurrency`."""

    def __post_init__(self) -> None:
        name = self.reward.name
        if not isinstance(self.weight, int | float) or not math.isfinite(self.weight):
            raise RewardError(f"{name}: weights must be finite numbers, not {self.weight!r}")
        if self.gate is not None and not math.isfinite(self.gate):
            raise RewardError(f"{name}: gate is {self.gate}; it must be a finite number")
        if self.counts_if is not None and not math.isfinite(self.counts_if.at_least):
            raise RewardError(f"{name}: counts_if.at_least is {self.counts_if.at_least}; it must be a finite number")
        if wrong := [each for each, least in self.after.items() if not math.isfinite(least)]:
            raise RewardError(f"{name}: after.{wrong[0]} is {self.after[wrong[0]]}; it must be a finite number")
        if self.retries < 0 or self.pause_s < 0:
            raise RewardError(f"{name}: retries ({self.retries}) and pause_s ({self.pause_s}) cannot be negative")
        for setting in ("deadline_s", "batch_size", "concurrency"):
            value = getattr(self, setting)
            if value is not None and not value > 0:
                raise RewardError(f"{name}: {setting} is {value}; it must be above 0")


class RewardWorker:
    """The threads and the cache of one reward of a suite."""

    def __init__(self, part: WeightedReward, cache: ScoreCache | None) -> None:
        self.part, self.reward = part, part.reward
        self._fingerprint, self._cache = "", cache if cache is not None and cacheable(part.reward) else None
        if self._cache is not None:
            try:
                self._fingerprint = part.reward.fingerprint()
            except RewardError as err:
                _log.warning("%s", err)
                self._cache = None
        self._calls = DaemonPool(part.concurrency or part.reward.concurrency, f"reward-{part.reward.name}")

    def score(self, batch: Sequence[RewardInput], context: RewardContext) -> RewardOutput:
        """Return the reward's scores of a batch; NaN exactly where its status is a failure, or not applicable.

        Raises:
            RewardError: the reward's output has the wrong names or lengths.
        """
        started = time.perf_counter()
        keys = [score_key(self._fingerprint, item) for item in batch] if self._cache else [None] * len(batch)
        cached = self._read_cache(keys)
        rows = [row for row, entry in enumerate(cached) if entry is None]
        calls = [
            (chunk, self._calls.submit(partial(self._score_with_retries, [batch[row] for row in chunk], context)))
            for chunk in self._chunks(batch, rows)
        ]
        scored = [(chunk, call.result()) for chunk, call in calls]
        if self._cache:
            entries = {keys[row]: entry for chunk, output in scored for row, entry in _cache_entries(chunk, output)}
            self._cache.put({key: entry for key, entry in entries.items() if key is not None})
            scored += [([row], _from_cache(entry)) for row, entry in enumerate(cached) if entry is not None]
        output = merge_outputs(scored, len(batch), self.reward.name)
        return replace(output, seconds=time.perf_counter() - started)

    def close(self) -> None:
        """Start no further calls, and wait for none that runs."""
        self._calls.close()

    def _read_cache(self, keys: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
        if self._cache is None:
            return [None] * len(keys)
        entries = iter(self._cache.get([key for key in keys if key is not None]))
        return [None if key is None else next(entries) for key in keys]

    def _chunks(self, batch: Sequence[RewardInput], rows: list[int]) -> list[list[int]]:
        """Return the rows of each call: whole groups for a reward that compares answers."""
        if self.reward.scope is not Scope.SAMPLE:
            return list(rows_by_group(batch).values())
        size = self.part.batch_size or self.reward.batch_size or max(1, len(rows))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _score_with_retries(self, items: list[RewardInput], context: RewardContext) -> RewardOutput:
        """Score, and score again the answers with transient failures."""
        output = self._score_in_time(items, context)
        for attempt in range(self.part.retries):
            failures = [list(row.values()) for row in output.failures]
            again = [row for row, failed in enumerate(failures) if any(failure.transient for failure in failed)]
            if not again:
                break
            retry_after_s = max((f.retry_after_s or 0.0 for failed in failures for f in failed), default=0.0)
            time.sleep(min(MAX_PAUSE_S, max(self.part.pause_s * 2**attempt, retry_after_s)))
            if self.reward.scope is not Scope.SAMPLE:
                again = list(range(len(items)))
            second = self._score_in_time([items[row] for row in again], context)
            final = sorted(set(range(len(items))) - set(again))
            output = merge_outputs([(final, select_rows(output, final)), (again, second)], len(items), self.reward.name)
        return output

    def _score_in_time(self, items: list[RewardInput], context: RewardContext) -> RewardOutput:
        """Score in one call, abandoned at the deadline; the thread of an abandoned call runs on."""
        if self.part.deadline_s is None:
            return _score_checked(self.reward, items, context)
        pool = DaemonPool(1, f"reward-{self.reward.name}-call")
        call = pool.submit(partial(_score_checked, self.reward, items, context))
        try:
            return call.result(self.part.deadline_s)
        except TimeoutError:
            # Not transient: the abandoned call is still running.
            late = ScoringFailed(f"no answer within {self.part.deadline_s:g} s", "timeout")
            return _failed(self.reward.name, len(items), late)
        finally:
            pool.close()


def _score_checked(reward: Reward, batch: Sequence[RewardInput], context: RewardContext) -> RewardOutput:
    """Return the reward's output, completed by failures that a user's `score` did not name."""
    size = len(batch)
    try:
        output = reward.score(batch, context)
    except Exception as err:  # a border: a scorer that breaks down is recorded, never a score
        return _failed(reward.name, size, err)
    _check_output(reward, output, size)
    values, status = {}, {}
    failures = [dict(row) for row in output.failures] or [{} for _ in batch]
    for name, scores in output.values.items():
        failed = [s in (Status.ERROR, Status.TIMEOUT) for s in output.status[name]]
        values[name] = np.where(np.isfinite(scores) & ~np.array(failed, bool), scores, math.nan).astype(np.float32)
        status[name] = [
            s if f or math.isfinite(v) or s is Status.NOT_APPLICABLE else Status.ERROR
            for s, f, v in zip(output.status[name], failed, values[name], strict=True)
        ]
        for row, state in enumerate(status[name]):
            if state in (Status.ERROR, Status.TIMEOUT):
                failures[row].setdefault(name, failures[row].get(reward.name, Failure(state.value)))
    return RewardOutput(values, status, output.detail, output.events, output.seconds, failures)


def _failed(name: str, size: int, error: Exception) -> RewardOutput:
    status, text, failure = failure_record(error)
    return RewardOutput(
        values={name: np.full(size, math.nan, np.float32)},
        status={name: [status] * size},
        detail=[{name: text} for _ in range(size)],
        failures=[{name: failure} for _ in range(size)],
    )


def _check_output(reward: Reward, output: RewardOutput, size: int) -> None:
    """Raise unless an output has the reward's name, the same names everywhere, and `size` rows in each column."""
    if reward.name not in output.values:
        raise RewardError(f"{reward.name}.score gave {', '.join(output.values) or 'nothing'}, but not its own name")
    if output.values.keys() != output.status.keys():
        raise RewardError(f"{reward.name}.score gave values of {[*output.values]}, statuses of {[*output.status]}")
    columns: dict[str, Any] = {f"values[{n}]": v for n, v in output.values.items()}
    columns |= {f"status[{n}]": s for n, s in output.status.items()} | {"detail": output.detail}
    columns |= {"events": output.events} if output.events else {}
    columns |= {"failures": output.failures} if output.failures else {}
    for column_name, column in columns.items():
        if len(column) != size:
            raise RewardError(f"{reward.name}.score gave {len(column)} rows of {column_name} for a batch of {size}")


def _cache_entries(rows: Sequence[int], output: RewardOutput) -> list[tuple[int, dict[str, Any]]]:
    """Return (row, cache entry) of the rows without failures and events."""
    return [
        (
            row,
            {
                "values": {name: float(column[place]) for name, column in output.values.items()},
                "status": {name: column[place].value for name, column in output.status.items()},
                "detail": output.detail[place],
            },
        )
        for place, row in enumerate(rows)
        if not output.failures[place] and not (output.events and output.events[place])
    ]


def _from_cache(entry: dict[str, Any]) -> RewardOutput:
    return RewardOutput(
        values={name: np.array([value], np.float32) for name, value in entry["values"].items()},
        status={name: [Status(status)] for name, status in entry["status"].items()},
        detail=[entry["detail"]],
        failures=[{}],
    )


class DaemonPool:
    """At most `size` daemon threads, started on demand, that execute calls in order.

    The interpreter does not wait for them at exit, as it does for the threads of
    `concurrent.futures.ThreadPoolExecutor`: a hanging reward must not keep a program from ending.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._change = threading.Condition()  # guards the calls and all fields below
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue a call and return its future.

        Raises:
            RuntimeError: the pool is closed.
        """
        future: Future[Result] = Future()
        with self._change:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            self._calls.append((future, call))
            if self._idle < len(self._calls) and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
            else:
                self._change.notify()
        return future

    def close(self) -> None:
        """Cancel the queued calls; each thread ends after its current call."""
        with self._change:
            self._closed = True
            while self._calls:
                self._calls.popleft()[0].cancel()
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                self._idle += 1
                self._change.wait_for(lambda: self._calls or self._closed, IDLE_S)
                self._idle -= 1
                if not self._calls:
                    self._threads -= 1
                    return
                future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as err:  # raised again in the thread that waits
                    future.set_exception(err)
            del future, call  # keep nothing alive while waiting for the next call
