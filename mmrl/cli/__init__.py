"""`mmrl ...`: thin commands, one file each. Imports are inside the commands, so that help is instant.

To add a command: a file with one function that parses and calls, and a line here. Errors that users can act on
(`errors.USER_ERRORS`) become one red message and an exit code; any other error is a bug and keeps its traceback.
"""

from __future__ import annotations

from typing import Annotated

import typer

import mmrl
from mmrl.cli import data, environments, evaluate, recipes, rewards, study
from mmrl.cli.demo import demo
from mmrl.cli.doctor import doctor
from mmrl.cli.errors import CommandGroup
from mmrl.cli.export import export
from mmrl.cli.plan import plan
from mmrl.cli.sample import sample
from mmrl.cli.score import score
from mmrl.cli.train import train

__all__ = ["app", "main"]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmrl {mmrl.__version__}")
        raise typer.Exit


def show_version(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Reinforcement learning for image and video generators and for vision-language models.

    Start with `mmrl train quickstart`, or see what ships with `mmrl recipes list`. MMRL_TRACEBACK=1 shows where an
    error came from.
    """


app = typer.Typer(
    name="mmrl",
    cls=CommandGroup,
    callback=show_version,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, plan, sample, export, demo, score, doctor):
    app.command()(command)
app.add_typer(environments.app, name="environments")
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(data.app, name="data")
app.add_typer(recipes.app, name="recipes")
app.add_typer(rewards.app, name="rewards")
app.add_typer(study.app, name="study")


def main() -> None:
    """Run the command line: the entry point of `mmrl` and `python -m mmrl`."""
    app(prog_name="mmrl")
