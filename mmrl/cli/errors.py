"""Errors that users can act on: each becomes one message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

USER_ERRORS = {
    ("mmrl.errors", "ConfigError"): 2,
    ("mmrl.errors", "DataError"): 1,
    ("mmrl.errors", "ResultError"): 2,  # before its base class
    ("mmrl.errors", "EvaluationError"): 1,
    ("mmrl.errors", "UnsupportedError"): 1,
    ("mmrl.rewards.core.reward_errors", "RewardError"): 1,
    ("mmrl.errors", "RunStopped"): 130,  # the exit code of a program that Ctrl-C ended
    ("mmrl.errors", "RunError"): 1,
    ("builtins", "OSError"): 1,
}
"""The exit code of each error that is printed without a traceback, by module and name. 2: nothing was started."""


class CommandGroup(TyperGroup):
    """A group of commands that prints user errors in red, without a traceback unless MMRL_TRACEBACK=1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raise typer.Exit after a user error."""
        try:
            return super().invoke(ctx)
        except Exception as err:
            code = exit_code(err)
            if code is None or os.environ.get("MMRL_TRACEBACK") == "1":
                raise
            if not _is_printed_elsewhere(err, code):
                print_error(str(err))
            raise typer.Exit(code) from err


def exit_code(error: Exception) -> int | None:
    """Return the exit code of a user error; None for any other error.

    The classes are looked up among the loaded modules, because help must not load them: the module of an error that was
    raised is loaded.
    """
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return None  # `mmrl ... | head`: typer exits without a message
    for (module, name), code in USER_ERRORS.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return code
    return None


def _is_printed_elsewhere(error: Exception, code: int) -> bool:
    """Return True if the watchdog of a run with several processes has printed the error, or another process prints it.

    Before anything is started, the processes of a host read the same recipe: the first one prints what is wrong.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    number = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    return hasattr(error, "_mmrl_printed") or (code == 2 and several and number != "0")


def print_error(message: str) -> None:
    """Print a red message on stderr, neither wrapped nor parsed as markup."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"error: {message}", style="red"), soft_wrap=True)
