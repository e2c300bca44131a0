"""Background work that reports progress and can be stopped: a thread, and a queue to the page that waits.

Gradio's own cancelling ends a handler only between two of its yields; a job also stops between two calls of a model.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from torch import nn

from mmrl.demo.error_handling import DemoError, Stopped

T = TypeVar("T")
log = logging.getLogger(__name__)


class BackgroundJob(Generic[T]):
    """A job that runs `work` in a thread; `work` passes its reports to `report`."""

    def __init__(self, work: Callable[[BackgroundJob[T]], None]) -> None:
        self._work, self._stop = work, threading.Event()
        self._reports: queue.SimpleQueue[T | BaseException | None] = queue.SimpleQueue()

    def stop(self) -> None:
        """Request the end of the job; no further call of a model starts."""
        self._stop.set()

    def raise_if_stopped(self) -> None:
        """Raise if the end was requested.

        Raises:
            Stopped: the end was requested.
        """
        if self._stop.is_set():
            raise Stopped

    def report(self, progress: T) -> None:
        """Pass a report to the caller of `reports`."""
        self._reports.put(progress)

    def reports(self) -> Iterator[T]:
        """Start the job and yield each report as it comes. A caller that stops iterating stops the job.

        Raises:
            DemoError: the work failed, with the reason.
            Stopped: the job was stopped.
        """
        threading.Thread(target=self._run, daemon=True, name="demo").start()
        try:
            while (item := self._reports.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.stop()

    @contextmanager
    def interruptible(self, *modules: nn.Module) -> Iterator[None]:
        """Make calls of these modules raise `Stopped` once the end was requested, while open.

        It uses hooks: the exception leaves a pipeline between two of its denoising steps.
        """
        handles = [module.register_forward_pre_hook(lambda *_: self.raise_if_stopped()) for module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _run(self) -> None:
        try:
            self._work(self)
        except (DemoError, Stopped) as err:
            self._reports.put(err)
        except Exception as err:  # a thread's border: the log has the traceback, the page a general message
            log.exception("a job of the demo failed")
            self._reports.put(DemoError(f"That failed on the server ({type(err).__name__}); its log says more."))
        self._reports.put(None)
