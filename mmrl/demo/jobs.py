"""Work that reports as it goes and stops when it is asked to: a thread, and a queue to the page that waits."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from torch import nn

from mmrl.demo.error_handling import DemoError, Stopped

T = TypeVar("T")
log = logging.getLogger(__name__)


class Job(Generic[T]):
    """Runs `work`, which hands what it has to `report`, in a thread of its own."""

    def __init__(self, work: Callable[[Job[T]], None]) -> None:
        self._work, self._asked = work, threading.Event()
        self._news: queue.SimpleQueue[T | BaseException | None] = queue.SimpleQueue()
        self.calls = 0  # of models, all in all

    def stop(self) -> None:
        """Ask for it; the next call of a model is not made."""
        self._asked.set()

    def refuse_stopped(self) -> None:
        """
        Raises:
            Stopped: it was asked for.
        """
        if self._asked.is_set():
            raise Stopped

    def report(self, news: T) -> None:
        """Say something to whoever listens."""
        self._news.put(news)

    def news(self) -> Iterator[T]:
        """Start, and give each report as it comes. A listener who leaves stops the work.

        Raises:
            DemoError: the work said why it cannot be done.
            Stopped: it was stopped.
        """
        threading.Thread(target=self._run, daemon=True, name="demo").start()
        try:
            while (item := self._news.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.stop()

    @contextmanager
    def watching(self, *modules: nn.Module) -> Iterator[None]:
        """While open, a call of these modules is refused once the job is to stop.

        A hook, so that the exception leaves a pipeline between two of its denoising steps.
        """

        def before(*_: Any) -> None:
            self.refuse_stopped()
            self.calls += 1

        handles = [module.register_forward_pre_hook(before) for module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _run(self) -> None:
        try:
            self._work(self)
        except (DemoError, Stopped) as err:
            self._news.put(err)
        except Exception as err:  # a thread's border: the log keeps it, the page is told in general
            log.exception("a job of the demo failed")
            self._news.put(DemoError(f"That failed on the server ({type(err).__name__}); its log says more."))
        self._news.put(None)
