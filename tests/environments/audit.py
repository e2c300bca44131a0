"""`recorded_events`: what a block of code opens, runs, connects to or changes, by audit events of Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

FORBIDDEN = (
    "open",
    "exec",
    "import",
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "tempfile.",
    "pickle.",
    "ctypes.",
    "urllib.",
    "ftplib.",
    "http.",
    "sqlite3.",
    "webbrowser.",
    "pty.",
    "marshal.",
    "code.__new__",
)
_recorders: list[list[tuple[str, str]]] = []
_installed = False


def _hook(event: str, args: tuple[object, ...]) -> None:
    if _recorders and event.startswith(FORBIDDEN):
        for recorder in _recorders:
            recorder.append((event, repr(args[0]) if args else ""))


@contextmanager
def recorded_events() -> Iterator[list[tuple[str, str]]]:
    """Record (event, first argument) of everything that any thread opens, runs or changes. Hooks cannot be removed."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    events: list[tuple[str, str]] = []
    _recorders.append(events)
    try:
        yield events
    finally:
        _recorders.remove(events)
