"""Processes that verify mathematics, each with a clock: math-verify hangs on some answers and works in no thread.

They are started when first needed, shared by everything in this process, and ended with it. A worker is a Python of its
own that runs `math_worker` by path, so it imports neither torch nor the script that started training, and inherits no
state of CUDA. What goes through the pipes is JSON.
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
START_S = 120.0
"""How long a worker may take to import sympy."""
WALL_FACTOR = 20
"""How many times its allowance of CPU a task may take on the wall's clock before the machine, not the answer, is to
blame. Where processes have no clock of CPU, as on Windows, the wall's clock is all there is."""

_HAS_CPU_CLOCK = hasattr(signal, "setitimer")
SCRIPT = Path(__file__).with_name("math_worker.py")


class MathPool:
    """At most `size` workers; safe to use from many threads, and after a fork."""

    def __init__(self, size: int = WORKERS, script: Path = SCRIPT) -> None:
        self.size, self.script = size, script
        self._inherited: list[set[_Worker]] = []
        self._start_empty()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """After a fork: the parent's workers are not the child's to talk to, nor to clean up."""
        self._inherited.append(self._all)
        self._start_empty()

    def _start_empty(self) -> None:
        self._free = threading.Semaphore(self.size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def equal(self, gold: str, answer: str, timeout_s: float) -> bool:
        """Whether an answer is mathematically the gold.

        A worker that dies is tried once more, in a fresh one: it may have been worn out by what came before.

        Raises:
            InvalidAnswer: the answer cannot be parsed, or took too long or too much memory to compare.
            ScoringFailed: the gold cannot be used ("reference"), or the workers cannot ("worker", "timeout").
        """
        with self._free:
            for attempt in range(2):
                worker = self._take()
                try:
                    verdict = worker.ask({"gold": gold, "answer": answer, "timeout_s": timeout_s})
                except _WorkerDied as err:
                    if attempt or err.out_of_time:
                        raise _to_error(err, gold, timeout_s) from None
                else:
                    return _read(verdict, gold)
                finally:
                    self._put_back(worker)
        raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        """End all workers; new ones start when needed."""
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
    """A worker that gave no verdict."""

    def __init__(self, gold_was_usable: bool, out_of_time: bool, machine_is_slow: bool, how: str) -> None:
        super().__init__(how)
        self.gold_was_usable, self.out_of_time, self.machine_is_slow = gold_was_usable, out_of_time, machine_is_slow


class _Worker:
    """One process and its pipes, used by one thread at a time."""

    def __init__(self, script: Path) -> None:
        # Isolated from the environment's Python settings, then given this process's own search path.
        command = [sys.executable, "-I", str(script), json.dumps([path for path in sys.path if isinstance(path, str)])]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as err:
            raise ScoringFailed(f"no process for math-verify could be started: {err}", "worker") from None
        self._started = self._timed_out = False

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """The verdict on a task.

        Raises:
            _WorkerDied: there is none.
        """
        if not self._started:
            hello = self._read_line(START_S)
            if hello is None or "failed" in hello:
                why = f": {hello['failed']}" if hello else " in time"
                raise ScoringFailed(f"math-verify could not be started{why}", "worker")
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
        with contextlib.suppress(OSError):  # it is dead, as reading will tell
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()

    def _read_line(self, wall_s: float) -> dict[str, Any] | None:
        """The next line from the worker; None if it died, or was ended because it took too long."""
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
        """Whether it can take another task."""
        return self._started and not self._timed_out and self._process.poll() is None

    def end(self) -> int:
        """End it if it still runs; its exit code."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):  # what was still to be written has no reader
                    pipe.close()
        return self._process.wait()


def _to_error(why: _WorkerDied, gold: str, timeout_s: float) -> Exception:
    if why.machine_is_slow:
        return ScoringFailed(f"math-verify got too little of the machine in {WALL_FACTOR * timeout_s:g} s", "timeout")
    how = f"more than {timeout_s:g} s" if why.out_of_time else f"a worker that {why}"
    if not why.gold_was_usable:
        return ScoringFailed(f"references.answer is {gold[:60]!r}: checking it took {how}", "reference")
    return InvalidAnswer(f"comparing the answer with {gold[:60]!r} took {how}")


def _read(verdict: dict[str, Any], gold: str) -> bool:
    if "gold" in verdict:
        raise ScoringFailed(f"references.answer is {gold[:60]!r}: {verdict['gold']}", "reference")
    if "answer" in verdict:
        raise InvalidAnswer(f"the answer {verdict['answer']}")
    return verdict.get("equal") is True


POOL = MathPool()
atexit.register(POOL.close)
