"""`mmrl --version`."""

from __future__ import annotations

from typing import Annotated

import typer

import mmrl


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
