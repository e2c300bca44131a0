"""Work of a request that can be stopped between two calls of a model.

Gradio's own cancelling ends a handler only between two of its yields.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from torch import nn

from mmrl.demo.error_handling import Stopped

T = TypeVar("T")


class StoppableJob(Generic[T]):
    """A job whose `work` yields reports, and which other threads can stop."""

    def __init__(self, work: Callable[[StoppableJob[T]], Iterator[T]]) -> None:
        self._work, self._stop = work, threading.Event()

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

    def reports(self) -> Iterator[T]:
        """Do the work and yield its reports. A caller that stops iterating stops the job.

        Raises:
            Stopped: the job was stopped.
        """
        try:
            yield from self._work(self)
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
