"""Threads that never keep a program from ending: unlike those of `concurrent.futures`, they are not waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
IDLE_S = 5.0
"""A thread without work ends after so long, so that what nobody uses any more holds none."""


class DaemonPool:
    """At most `size` threads, started as they are needed, that take calls in order."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Begin a call as soon as a thread is free.

        Raises:
            RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError(f"{self._name} is closed")
        future: Future[Result] = Future()
        self._calls.put((future, call))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def close(self) -> None:
        """Cancel what has not begun, and let the threads end once they are done."""
        self._closed = True
        while not self._calls.empty():
            waiting = self._calls.get()
            if waiting is not None:
                waiting[0].cancel()
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as why:  # handed to the thread that waits
                    future.set_exception(why)
            del taken, future, call  # nothing is kept alive while waiting for the next
            self._idle.release()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next call; None: this thread is to end."""
        while True:
            try:
                return self._calls.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._calls.empty():  # else one was put that counts on this thread
                        self._idle.acquire(blocking=False)
                        self._threads -= 1
                        return None
