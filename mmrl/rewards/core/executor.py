"""How a suite calls one reward: in batches, several calls at once where it waits for a server, again after failures
that may pass, and never past a deadline."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from mmrl.rewards.core.base import (
    Failure,
    Reward,
    RewardContext,
    RewardError,
    RewardInput,
    RewardOutput,
    ScoringFailed,
    Status,
    by_group,
    told,
)
from mmrl.rewards.core.cache import ScoreCache, cacheable, score_key
from mmrl.rewards.core.spec import Scope

LONGEST_PAUSE_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """A reward of a suite, and how the suite uses it."""

    reward: Reward
    weight: float = 1.0
    """0: watched, and no part of the total."""
    gate: float | None = None
    """An answer that does not reach this value gets the lowest total there is, whatever else it earned."""
    retries: int = 3
    """How often answers whose scoring failed for a reason that may pass are scored again."""
    pause_s: float = 0.5
    """Before the first of these; each further one waits twice as long."""
    deadline_s: float | None = None
    """A call that takes longer is given up: its answers have the status "timeout", and are not scored again. The call
    itself runs on until it ends, and the next one may run beside it."""
    batch_size: int | None = None
    """Answers a call; unset: as the reward says."""
    concurrency: int | None = None
    """Calls at once; unset: as the reward says."""

    def __post_init__(self) -> None:
        name = self.reward.name
        if not math.isfinite(self.weight):
            raise RewardError(f"{name}: weights must be finite numbers, not {self.weight}")
        if self.gate is not None and not math.isfinite(self.gate):
            raise RewardError(f"{name}: gate is {self.gate}; it must be a finite number")
        if self.retries < 0 or self.pause_s < 0:
            raise RewardError(f"{name}: retries ({self.retries}) and pause_s ({self.pause_s}) cannot be negative")
        for setting in ("deadline_s", "batch_size", "concurrency"):
            value = getattr(self, setting)
            if value is not None and not value > 0:
                raise RewardError(f"{name}: {setting} is {value}; it must be above 0")


class RewardWorker:
    """The threads that one reward of a suite runs in."""

    def __init__(self, part: Part, cache: ScoreCache | None) -> None:
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
        """The reward's scores of a batch; NaN and a status of failure always go together.

        Raises:
            RewardError: the reward's output has not the shape that it must have.
        """
        started = time.perf_counter()
        keys = [score_key(self._fingerprint, item) for item in batch] if self._cache else []
        known = self._known(keys, len(batch))
        unknown = [row for row, held in enumerate(known) if held is None]
        calls = [(rows, self._begin([batch[row] for row in rows], context)) for rows in self._chunks(batch, unknown)]
        found = [(rows, call.result()) for rows, call in calls]
        if self._cache:
            kept = [(keys[row], held) for rows, out in found for row, held in _to_keep(rows, out)]
            self._cache.put({key: held for key, held in kept if key is not None})
            found += [([row], _from_cache(held)) for row, held in enumerate(known) if held is not None]
        output = gathered(self.reward, found, len(batch))
        return replace(output, seconds=time.perf_counter() - started)

    def close(self) -> None:
        """Start no further calls, and wait for none that runs."""
        self._calls.close()

    def _known(self, keys: list[bytes | None], size: int) -> list[dict[str, Any] | None]:
        """What the cache holds of each row."""
        if self._cache is None:
            return [None] * size
        held = iter(self._cache.get([key for key in keys if key is not None]))
        return [None if key is None else next(held) for key in keys]

    def _chunks(self, batch: Sequence[RewardInput], rows: list[int]) -> list[list[int]]:
        """Rows of each call: whole groups for a reward that compares answers."""
        if self.reward.scope is not Scope.SAMPLE:
            return list(by_group(batch).values())
        size = self.part.batch_size or self.reward.batch_size or max(1, len(rows))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _begin(self, items: list[RewardInput], context: RewardContext) -> Future[RewardOutput]:
        return self._calls.submit(lambda: self._persist(items, context))

    def _persist(self, items: list[RewardInput], context: RewardContext) -> RewardOutput:
        """Score, and score again what failed for a reason that may pass."""
        output = self._in_time(items, context)
        for attempt in range(self.part.retries):
            again = [row for row, failed in enumerate(output.failures) if _may_pass(failed)]
            if not again:
                break
            time.sleep(min(LONGEST_PAUSE_S, max(self.part.pause_s * 2**attempt, _asked_for(output))))
            if self.reward.scope is not Scope.SAMPLE:
                again = list(range(len(items)))
            second = self._in_time([items[row] for row in again], context)
            kept = sorted(set(range(len(items))) - set(again))
            output = gathered(self.reward, [(kept, _rows(output, kept)), (again, second)], len(items))
        return output

    def _in_time(self, items: list[RewardInput], context: RewardContext) -> RewardOutput:
        """One call, given up at the deadline. The thread of a call that was given up is left to itself."""
        if self.part.deadline_s is None:
            return _checked(self.reward, items, context)
        answer: Future[RewardOutput] = Future()

        def call() -> None:
            try:
                answer.set_result(_checked(self.reward, items, context))
            except Exception as err:  # handed to the thread that waits
                answer.set_exception(err)

        threading.Thread(target=call, daemon=True, name=f"reward-{self.reward.name}-call").start()
        try:
            return answer.result(self.part.deadline_s)
        except TimeoutError:
            # Not to be tried again: the call that was given up still runs.
            late = ScoringFailed(f"no answer within {self.part.deadline_s:g} s", "timeout")
            return _failed(self.reward.name, len(items), late)


def _checked(reward: Reward, batch: Sequence[RewardInput], context: RewardContext) -> RewardOutput:
    """What the reward gives, with failures that a custom `score` did not name filled in."""
    size = len(batch)
    try:
        output = reward.score(batch, context)
    except Exception as err:  # a border: a scorer that breaks down is recorded, never a score
        return _failed(reward.name, size, err)
    _refuse_misshapen(reward, output, size)
    values, status = {}, {}
    failures = [dict(row) for row in output.failures] or [{} for _ in batch]
    for name, scores in output.values.items():
        failed = [s in (Status.ERROR, Status.TIMEOUT) for s in output.status[name]]
        values[name] = np.where(np.isfinite(scores) & ~np.array(failed, bool), scores, math.nan).astype(np.float32)
        status[name] = [
            s if f or math.isfinite(v) else Status.ERROR
            for s, f, v in zip(output.status[name], failed, values[name], strict=True)
        ]
        for row, state in enumerate(status[name]):
            if state in (Status.ERROR, Status.TIMEOUT):
                named = failures[row].get(reward.name, Failure(state.value))
                failures[row].setdefault(name, named)
    return RewardOutput(values, status, output.detail, output.events, output.seconds, failures)


def _failed(name: str, size: int, why: Exception) -> RewardOutput:
    status, text, failure = told(why)
    return RewardOutput(
        values={name: np.full(size, math.nan, np.float32)},
        status={name: [status] * size},
        detail=[{name: text} for _ in range(size)],
        failures=[{name: failure} for _ in range(size)],
    )


def _refuse_misshapen(reward: Reward, output: RewardOutput, size: int) -> None:
    if reward.name not in output.values:
        raise RewardError(f"{reward.name}.score gave {', '.join(output.values) or 'nothing'}, but not its own name")
    if output.values.keys() != output.status.keys():
        raise RewardError(
            f"{reward.name}.score gave values of {list(output.values)}, statuses of {list(output.status)}"
        )
    columns: dict[str, Any] = {f"values[{n}]": v for n, v in output.values.items()}
    columns |= {f"status[{n}]": s for n, s in output.status.items()} | {"detail": output.detail}
    columns |= {"events": output.events} if output.events else {}
    columns |= {"failures": output.failures} if output.failures else {}
    for what, column in columns.items():
        if len(column) != size:
            raise RewardError(f"{reward.name}.score gave {len(column)} rows of {what} for a batch of {size}")


def _may_pass(failures: dict[str, Failure]) -> bool:
    return any(failure.transient for failure in failures.values())


def _asked_for(output: RewardOutput) -> float:
    """The longest pause in seconds that a server asked for."""
    return max((f.retry_after_s or 0.0 for row in output.failures for f in row.values()), default=0.0)


def _rows(output: RewardOutput, rows: Sequence[int]) -> RewardOutput:
    return RewardOutput(
        values={name: column[list(rows)] for name, column in output.values.items()},
        status={name: [column[row] for row in rows] for name, column in output.status.items()},
        detail=[output.detail[row] for row in rows],
        events=[output.events[row] for row in rows] if output.events else [],
        failures=[output.failures[row] for row in rows],
    )


def gathered(reward: Reward, parts: Sequence[tuple[Sequence[int], RewardOutput]], size: int) -> RewardOutput:
    """One output of several that hold its rows. A name that a part lacks is filled in as each row's own status says."""
    names = sorted({name for _, output in parts for name in output.values} | {reward.name})
    values = {name: np.full(size, math.nan, np.float32) for name in names}
    status = {name: [Status.ERROR] * size for name in names}
    detail: list[dict[str, Any]] = [{} for _ in range(size)]
    failures: list[dict[str, Failure]] = [{} for _ in range(size)]
    events: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for rows, output in parts:
        for place, row in enumerate(rows):
            own = output.status[reward.name][place]
            for name in names:
                if name in output.values:
                    values[name][row], status[name][row] = output.values[name][place], output.status[name][place]
                elif own is not Status.OK:
                    values[name][row], status[name][row] = output.values[reward.name][place], own
            detail[row], failures[row] = output.detail[place], output.failures[place]
            events[row] = output.events[place] if output.events else []
    return RewardOutput(values, status, detail, events if any(events) else [], failures=failures)


def _to_keep(rows: Sequence[int], output: RewardOutput) -> list[tuple[int, dict[str, Any]]]:
    """What is worth keeping of each row: values and statuses, of rows without failures."""
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


def _from_cache(row: dict[str, Any]) -> RewardOutput:
    return RewardOutput(
        values={name: np.array([value], np.float32) for name, value in row["values"].items()},
        status={name: [Status(status)] for name, status in row["status"].items()},
        detail=[row["detail"]],
        failures=[{}],
    )


# Threads that never keep a program from ending: unlike those of `concurrent.futures`, they are not waited for.


Result = TypeVar("Result")
IDLE_S = 5.0
"""A thread without work ends after so long, so that what nobody uses any more holds none."""


class DaemonPool:
    """At most `size` threads, started as they are needed, that take calls in order."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._change = threading.Condition()  # guards all that follows, and the calls
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Begin a call as soon as a thread is free.

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
        """Cancel what has not begun, and let the threads end once they are done."""
        with self._change:
            self._closed = True
            while self._calls:
                self._calls.popleft()[0].cancel()
            self._change.notify_all()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as err:  # handed to the thread that waits
                    future.set_exception(err)
            del taken, future, call  # nothing is kept alive while waiting for the next

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; None: this thread is to end."""
        with self._change:
            while not self._calls:
                self._idle += 1
                in_time = self._change.wait(IDLE_S) and not self._closed
                self._idle -= 1
                if not in_time and not self._calls:
                    self._threads -= 1
                    return None
            return self._calls.popleft()
