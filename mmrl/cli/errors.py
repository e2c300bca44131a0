"""The border where errors that users can act on become one message and an exit code."""

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
    ("mmrl.errors", "RunStopped"): 130,  # as shells say of a program that Ctrl-C ended
    ("mmrl.errors", "RunError"): 1,
    ("builtins", "OSError"): 1,
}
"""Module and name of each error whose message is enough, with the exit code it ends in. 2: nothing was started."""


class CommandGroup(TyperGroup):
    """Runs commands; prints a user error in red, without a traceback unless MMRL_TRACEBACK=1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except Exception as err:
            code = exit_code(err)
            if code is None or os.environ.get("MMRL_TRACEBACK") == "1":
                raise
            print_error(str(err))
            raise typer.Exit(code) from err


def exit_code(error: Exception) -> int | None:
    """The exit code of a user error; None for anything else.

    The classes are looked up among the modules that are loaded: whoever raised one has loaded its module, and help
    must not load any of them.
    """
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return None  # `mmrl ... | head`: typer leaves quietly
    for (module, name), code in USER_ERRORS.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return code
    return None


def print_error(message: str) -> None:
    """A red message on stderr, neither wrapped nor taken for markup."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"error: {message}", style="red"), soft_wrap=True)
