"""`mmrl rewards list|show|serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from mmrl.cli.reward_settings import RewardArgs, reward_settings

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


@app.command()
def serve(
    reward: Annotated[list[str], typer.Argument(help="Rewards, as in `mmrl rewards list`, or FILE.py:NAME.")],
    arg: RewardArgs = None,
    host: Annotated[str, typer.Option(help="The address to listen on; others than loopback need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one, and prints it.")] = 8765,
    api_key_env: Annotated[
        str, typer.Option(metavar="VARIABLE", help="The environment variable with the key that clients must send.")
    ] = "",
    waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait; further ones get 429.")] = 64,
    threads: Annotated[int, typer.Option(min=1, help="Requests that are scored at once; 1 for models.")] = 1,
    max_megabytes: Annotated[int, typer.Option(min=1, help="Of a request.")] = 256,
    body_seconds: Annotated[float, typer.Option(min=0.1, help="In which a request's body must have come.")] = 60.0,
) -> None:
    """Score over HTTP, for runs of other processes and machines: {name: remote, args: {url: ..., reward: ...}}."""
    from mmrl.cli.errors import print_error
    from mmrl.rewards import load
    from mmrl.rewards.service.reward_service import ServiceLimits, run_service

    settings = reward_settings(reward, arg or [])
    limits = ServiceLimits(max_megabytes * 2**20, body_seconds, waiting=waiting, threads=threads)
    try:
        run_service([load(name, **settings[name]) for name in reward], limits, host, port, api_key_env)
    except OSError as err:
        print_error(f"cannot listen on {host}:{port}: {err.strerror or err}")
        raise typer.Exit(1) from err
