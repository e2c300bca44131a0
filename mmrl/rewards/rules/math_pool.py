"""A pool of worker processes for math-verify, with time limits: it hangs on some answers and does not work in threads.

Workers are started when first needed, shared by the whole process, and ended with it. A worker is a separate Python
that runs `math_worker` by path, so it imports neither torch nor the training script, and inherits no CUDA state. Tasks
and replies are lines of JSON on its pipes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed

WORKERS = 4
START_S = 120.0  # time limit of a worker's start, in which it imports sympy
WALL_FACTOR = 20
"""The wall-clock limit of a task as a multiple of its CPU limit; past it the machine is at fault, not the answer.
Without a CPU timer, as on Windows, the wall-clock limit equals the task's limit."""

_HAS_CPU_CLOCK = hasattr(signal, "setitimer")
SCRIPT = Path(__file__).with_name("math_worker.py")


class MathPool:
    """A pool of at most `size` workers, safe to use from many threads and after a fork."""

    def __init__(self, size: int = WORKERS, script: Path = SCRIPT) -> None:
        self.size, self.script = size, script
        self._inherited: list[set[_Worker]] = []
        self._start_empty()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Start without workers after a fork: the parent's workers are neither used nor ended by the child."""
        self._inherited.append(self._all)
        self._start_empty()

    def _start_empty(self) -> None:
        self._free = threading.Semaphore(self.size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def equal(self, gold: str, answer: str, timeout_s: float) -> bool:
        """Return whether an answer is mathematically equal to the gold.

        If a worker dies, the task is tried once more in a new one: earlier tasks may have exhausted its memory.

        Raises:
            InvalidAnswer: the answer cannot be parsed, or took too much time or memory to compare.
            ScoringFailed: the gold is unusable ("reference"), or the workers are ("worker", "timeout").
        """
        with self._free:
            for attempt in range(2):
                worker = self._take()
                try:
                    verdict = worker.request({"gold": gold, "answer": answer, "timeout_s": timeout_s})
                except _WorkerDied as err:
                    if attempt or err.out_of_time:
                        raise _to_error(err, gold, timeout_s) from None
                else:
                    return _read(verdict, gold)
                finally:
                    self._put_back(worker)
        raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        """End all workers; new ones are started when needed."""
        with self._lock:
            workers, self._all, self._idle = list(self._all), set(), []
        for worker in workers:
            worker.end()

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            worker = _Worker(self.script)
            self._all.add(worker)
            return worker

    def _put_back(self, worker: _Worker) -> None:
        if worker.is_alive():
            with self._lock:
                if worker in self._all:  # not closed meanwhile
                    self._idle.append(worker)
                    return
        worker.end()
        with self._lock:
            self._all.discard(worker)


class _WorkerDied(Exception):
    """A worker ended without a verdict."""

    def __init__(self, gold_was_usable: bool, out_of_time: bool, machine_is_slow: bool, reason: str) -> None:
        super().__init__(reason)
        self.gold_was_usable, self.out_of_time, self.machine_is_slow = gold_was_usable, out_of_time, machine_is_slow


class _Worker:
    """A worker process and its pipes, used by one thread at a time."""

    def __init__(self, script: Path) -> None:
        # Isolated from the environment's Python settings; the search path of this process is its argument.
        command = [sys.executable, "-I", str(script), json.dumps([path for path in sys.path if isinstance(path, str)])]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as err:
            raise ScoringFailed(f"no process for math-verify could be started: {err}", "worker") from None
        self._started = self._timed_out = False

    def request(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict on a task.

        Raises:
            _WorkerDied: the worker ended before its verdict.
        """
        if not self._started:
            hello = self._read_line(START_S)
            if hello is None or "failed" in hello:
                reason = f": {hello['failed']}" if hello else " in time"
                raise ScoringFailed(f"math-verify could not be started{reason}", "worker")
            self._started = True
        wall_s = task["timeout_s"] * (WALL_FACTOR if _HAS_CPU_CLOCK else 1)
        self._send(task)
        reply = self._read_line(wall_s)
        usable = reply == {"gold": "ok"}
        if usable:
            reply = self._read_line(wall_s)
        if reply is not None:
            return reply
        code = self.end()
        timed_out = self._timed_out or (_HAS_CPU_CLOCK and code == -signal.SIGPROF)
        slow = self._timed_out and _HAS_CPU_CLOCK
        raise _WorkerDied(usable, timed_out, slow, "ran out of time" if timed_out else f"ended with {code}")

    def _send(self, task: dict[str, Any]) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):  # a dead worker is noticed when reading
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()

    def _read_line(self, wall_s: float) -> dict[str, Any] | None:
        """Return the next line from the worker; None if it died, or was killed at the time limit."""
        assert self._process.stdout
        alarm = threading.Timer(wall_s, self._on_timeout)
        alarm.daemon = True
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        try:
            reply = json.loads(line)
        except ValueError:
            return None  # died in the middle of a line, or before it
        return reply if isinstance(reply, dict) and not self._timed_out else None

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._process.kill()

    def is_alive(self) -> bool:
        """Return whether the worker can take another task."""
        return self._started and not self._timed_out and self._process.poll() is None

    def end(self) -> int:
        """Kill the process if it still runs, and return its exit code."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):  # unwritten data has no reader
                    pipe.close()
        return self._process.wait()


def _to_error(err: _WorkerDied, gold: str, timeout_s: float) -> Exception:
    if err.machine_is_slow:
        return ScoringFailed(f"math-verify got too little CPU time in {WALL_FACTOR * timeout_s:g} s", "timeout")
    cost = f"more than {timeout_s:g} s" if err.out_of_time else f"a worker that {err}"
    if not err.gold_was_usable:
        return ScoringFailed(f"references.answer is {gold[:60]!r}: checking it took {cost}", "reference")
    return InvalidAnswer(f"comparing the answer with {gold[:60]!r} took {cost}")


def _read(verdict: dict[str, Any], gold: str) -> bool:
    if "gold" in verdict:
        raise ScoringFailed(f"references.answer is {gold[:60]!r}: {verdict['gold']}", "reference")
    if "answer" in verdict:
        raise InvalidAnswer(f"the answer {verdict['answer']}")
    return verdict.get("equal") is True


POOL = MathPool()
atexit.register(POOL.close)
