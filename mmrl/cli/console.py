"""Where commands print tables."""

from __future__ import annotations

from rich.console import Console

WIDE = 120  # columns: enough for every table, where nothing says how wide the output is


def console() -> Console:
    """As wide as the terminal; in a pipe or a log file, wide enough not to break names."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDE)
