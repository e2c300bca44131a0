"""`mmrl recipes list|show|copy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The configurations that ship with mmrl.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Name every recipe and what it does."""
    from rich.console import Console
    from rich.table import Table

    from mmrl.config import list_recipes

    table = Table("recipe", "what it does", "folder", box=None)
    for recipe in list_recipes():
        table.add_row(recipe.name, recipe.description, recipe.path.parent.name)
    Console().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A recipe or task.")]) -> None:
    """Print a recipe's file."""
    from mmrl.config import find_recipe

    recipe = find_recipe(name)
    typer.echo(recipe.path.read_text(encoding="utf-8"), nl=False)


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="A recipe or task.")],
    to: Annotated[
        Path | None, typer.Argument(help="A file or folder; none is overwritten.", show_default="here")
    ] = None,
) -> None:
    """Copy a recipe, to change it."""
    from mmrl.config import copy_recipe

    typer.echo(copy_recipe(name, to))
