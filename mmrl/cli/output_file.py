"""The file that a command writes at its end, as an option or an argument: refused at once if it cannot be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer


def output_option(help: str) -> Any:
    """Return the option of a file that a command writes."""
    return typer.Option(**_FILE, help=help)


def output_argument(help: str) -> Any:
    """Return the argument of a file that a command writes."""
    return typer.Argument(**_FILE, help=help)


def _checked_place(path: Path | None) -> Path | None:
    """Return the path of a file that can be written, in a folder that is there or can be made.

    Raises:
        typer.BadParameter: a file is in the way, or the folder is read-only.
    """
    there = None if path is None else next((each for each in path.parents if os.path.exists(each)), None)
    if there is not None and not there.is_dir():
        raise typer.BadParameter(f"{there} is a file")
    if there is not None and not os.access(there, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{there} is read-only")
    return path


_FILE: dict[str, Any] = {"metavar": "FILE", "dir_okay": False, "writable": True, "callback": _checked_place}
