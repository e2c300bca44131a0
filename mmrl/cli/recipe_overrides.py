"""`Overrides`: the argument of a command that changes keys of its recipe."""

from __future__ import annotations

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="a.b=c", help="Changes to the recipe.", show_default=False)
]
