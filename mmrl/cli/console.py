"""The console on which commands print tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

WIDE = 120  # columns: enough for every table; used if the output is no terminal


def console() -> Console:
    """Return a console as wide as the terminal; in a pipe or a log file, wide enough not to break names."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDE)


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    """Suppress diffusers' warnings in a `with` block."""
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
