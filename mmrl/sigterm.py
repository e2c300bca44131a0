"""SIGTERM, the signal by which schedulers and launchers end a process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
"""The exit code of a process that SIGTERM ended."""


def exit_process() -> None:
    """Raise `SystemExit` with `EXIT_CODE`."""
    raise SystemExit(EXIT_CODE)


@contextmanager
def handling_sigterm(handle: Callable[[], None] = exit_process) -> Iterator[None]:
    """Call `handle` at SIGTERM while open; by default `SystemExit` is raised, so that `finally` blocks run.

    Nothing is changed outside the main thread, or where SIGTERM is handled already.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        handle()

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
