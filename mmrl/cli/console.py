"""Where commands print tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

WIDE = 120  # columns: enough for every table, where nothing says how wide the output is


def console() -> Console:
    """As wide as the terminal; in a pipe or a log file, wide enough not to break names."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDE)


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    """While open, diffusers' own warnings are not shown."""
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
