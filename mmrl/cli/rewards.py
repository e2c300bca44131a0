"""`mmrl rewards list|show`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="The rewards that recipes can name.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Name every reward and what it measures."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mmrl.rewards.core.registry import available, describe

    table = Table("reward", "what it measures", box=None)
    for name in available():
        table.add_row(name, Text(describe(name).partition("\n")[0].removeprefix(f"{name}: ")))
    Console().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A reward, or path/to/file.py:function.")]) -> None:
    """Print what a reward measures, its range, its inputs and its arguments."""
    from mmrl.rewards.core.registry import describe

    typer.echo(describe(name))
