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
    """Suppress the warnings of diffusers, and of transformers' tokenizers, in a `with` block."""
    from diffusers.utils import logging
    from transformers.utils import logging as transformers_logging

    libraries = (logging, transformers_logging)
    before = [library.get_verbosity() for library in libraries]
    for library in libraries:
        library.set_verbosity_error()
    try:
        yield
    finally:
        for library, level in zip(libraries, before, strict=True):
            library.set_verbosity(level)
