"""`mmrl recipes list|show|copy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The configurations that ship with mmrl.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Name every recipe, what it does, and the published systems that it serves."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from mmrl.config.recipes import list_recipes, list_reward_recipes
    from mmrl.studies.systems import recipe_systems

    served = recipe_systems()
    table = Table(box=None)
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it does")
    table.add_column("folder", no_wrap=True)
    for recipe in [*list_recipes(), *list_reward_recipes()]:
        systems = ", ".join(served.get(recipe.name, []))
        text = f"{recipe.description}\nsystems: {systems}" if systems else recipe.description
        table.add_row(recipe.name, escape(text), recipe.path.parent.name)
    Console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe, a task, or a published system by its name or key.")],
) -> None:
    """Print a recipe's file."""
    from mmrl.config import ConfigError, find_recipe
    from mmrl.config.recipes import find_any_recipe
    from mmrl.studies.systems import recipe_of_system

    try:
        recipe = find_any_recipe(name)
    except ConfigError:
        if (own := recipe_of_system(name)) is None:
            raise
        recipe = find_recipe(own)
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
