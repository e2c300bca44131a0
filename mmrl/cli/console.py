"""The console on which commands print tables, and the bar of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

WIDE = 120  # columns: enough for every table; used if the output is no terminal


def console() -> Console:
    """Return a console as wide as the terminal; in a pipe or a log file, wide enough not to break names."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDE)


@contextmanager
def progress_bar(work: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr in a `with` block; the function sets how much is done, and of how much."""
    columns = (TextColumn(work), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(work, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


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
