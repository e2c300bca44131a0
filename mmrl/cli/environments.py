"""`mmrl environments list|show|play|watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mmrl.config.environment import EnvironmentConfig

app = typer.Typer(help="Environments of several turns, and the tools that policies call.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Name every environment and tool, and what it does."""
    from rich.table import Table
    from rich.text import Text

    from mmrl.cli.console import console
    from mmrl.environments import available_environments, available_tools, describe

    for kind, names in (("environment", available_environments()), ("tool", available_tools())):
        table = Table(kind, "what it does", box=None)
        for name in names:
            table.add_row(name, Text(describe(name).partition("\n")[0].removeprefix(f"{name}: ")))
        console().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(help="An environment or a tool, or path/to/file.py:NAME.")]) -> None:
    """Print what an environment or a tool does, and its arguments."""
    from mmrl.environments import describe

    typer.echo(describe(name))


@app.command()
def play(
    name: Annotated[str, typer.Argument(help="An environment, or path/to/file.py:Class.")],
    data: Annotated[str, typer.Option(metavar="FILE", help="Samples: a file, or package:split.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="key=value",
            help="Keys of the section environment, such as max_turns=3 or tools='[{name: crop}]'.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, metavar="N", help="The number of the sample, from 0.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where pictures go; else play/NAME-N.")] = None,
) -> None:
    """Play an episode yourself: one line is one turn; an empty line stands for a turn that was cut off."""
    from mmrl.build.datasets import load_samples
    from mmrl.data.media.budget import MediaBudget
    from mmrl.data.media.reader import MediaReader
    from mmrl.environments import build_environment
    from mmrl.environments.play import play as play_episode
    from mmrl.errors import DataError

    environment = build_environment(_config(name, settings or []))
    samples = load_samples(data)
    if sample >= len(samples):
        raise DataError(f"{data}: there is no sample {sample}: there are {len(samples)}, numbered from 0")
    stem = name.rpartition(":")[2]
    folder = out or Path("play") / f"{stem}-{sample}"
    outcome = play_episode(environment, samples[sample], MediaReader(MediaBudget()), folder, _line, typer.echo)
    if outcome.get("void"):
        raise typer.Exit(1)


@app.command()
def watch(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Runs: RUN, RUN@best, RUN@40 or RUN@base; one or several.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Samples: a file, or package:split.", show_default="the run's validation set"
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, metavar="N", help="The number of the sample, from 0.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise: equal for all models.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0: the likeliest tokens.", show_default="the run's")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", dir_okay=False, help="The page that is written.")] = Path(
        "episode.html"
    ),
) -> None:
    """Let checkpoints play a sample in the environment of their run, and write their turns as a page."""
    from mmrl.evaluation.episodes.episode_html import number_list
    from mmrl.evaluation.report.page import one_line
    from mmrl.workflows.watch_episode import watch_episodes

    for name, episode in watch_episodes(models, data, sample, seed, temperature, out):
        typer.echo(name)
        for number, turn in enumerate(episode.turns, start=1):
            rewards = f"  ({number_list(turn.rewards)})" if turn.rewards else ""
            typer.echo(f"  turn {number}: {one_line(turn.action, 200)}{rewards}")
        typer.echo("  " + ", ".join(f"{key} {value}" for key, value in episode.outcome.items() if value is not None))
    typer.echo(out)


def _config(name: str, settings: list[str]) -> EnvironmentConfig:
    """Return the section of an environment that the command line describes."""
    from pydantic import ValidationError

    from mmrl.config.environment import EnvironmentConfig
    from mmrl.config.loading.overrides import COMMAND_LINE, check_set_once, parse_override
    from mmrl.errors import ConfigError

    check_set_once(settings)
    document: dict[str, Any] = {"name": name}
    for text in settings:
        keys, value = parse_override(text)
        inner = document
        for key in keys[:-1]:
            inner = inner.setdefault(str(key), {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{COMMAND_LINE}: {text}: {key} is no map; write the whole of it as YAML")
        inner[str(keys[-1])] = value
    try:
        return EnvironmentConfig.model_validate(document)
    except ValidationError as err:
        problems = [
            f"{COMMAND_LINE}: {'.'.join(map(str, each['loc'])) or 'environment'}: {each['msg']}"
            for each in err.errors(include_url=False)
        ]
        raise ConfigError("\n".join(problems).replace("Value error, ", "")) from None


def _line(turn: int) -> str | None:
    try:
        return input(f"turn {turn}> ") or None
    except EOFError:
        return None
