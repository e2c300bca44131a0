"""Threads that never keep a program from ending: unlike those of `concurrent.futures`, they are not waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

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
                except BaseException as why:  # handed to the thread that waits
                    future.set_exception(why)
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
