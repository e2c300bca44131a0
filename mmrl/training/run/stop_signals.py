"""SIGINT and SIGTERM while a run trains: the first asks it to end after the iteration, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests(message: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Handle SIGINT and SIGTERM while open; yield a function that returns True once one of them came.

    The first signal restores the earlier handlers, so that a second one has its usual effect. Outside the main thread,
    which is the only one that may handle signals, the function always returns False. Signals that were ignored before,
    as Ctrl-C is in a background process, stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    requested = False
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        restore()
        with suppress(OSError, RuntimeError):  # the reader of a pipe may be gone (`| tee log`), or a print interrupted
            message(f"{signal.Signals(number).name}: finishing this iteration, then saving; once more to leave at once")

    for number in before:
        signal.signal(number, handle)
    try:
        yield lambda: requested
    finally:
        restore()
