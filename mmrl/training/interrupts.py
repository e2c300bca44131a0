"""Stopping on request: the first Ctrl-C or SIGTERM lets the iteration finish, the second acts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """While open, the function given tells whether a stop was asked for.

    At the first signal the handlers of before come back, so that a second one does what it always does. Outside of
    the main thread, which alone may handle signals, nothing is ever asked for; nor by signals that are ignored, as
    Ctrl-C is by a program in the background.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()
        with suppress(OSError, RuntimeError):  # `mmrl train 2>&1 | tee log`: Ctrl-C ended tee first; or amid a print
            say(f"{signal.Signals(number).name}: finishing this iteration, then saving; once more to leave at once")

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        restore()
