"""`Overrides`: the argument of a command that changes keys of its recipe."""

from __future__ import annotations

from typing import Annotated

import typer


def set_once(texts: list[str] | None) -> list[str] | None:
    """Return the overrides of a command; raise a ConfigError if two of them set one key."""
    if texts:
        from mmrl.config.loading.overrides import check_set_once

        check_set_once(texts)
    return texts


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="a.b=c", help="Changes to the recipe.", show_default=False, callback=set_once),
]
