"""`mmrl data check|prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from mmrl.config.media import MediaConfig
    from mmrl.understanding.tasks.check_data import Report

app = typer.Typer(help="Data sets: what is wrong with one, and media made ready for training.", no_args_is_help=True)

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="JSON Lines, Parquet, a folder of `save_to_disk`, or hf:owner/name:split.")
]


@app.command()
def check(
    file: Source,
    media: Annotated[
        bool, typer.Option("--media/--no-media", help="Decode every picture and video to its end.")
    ] = True,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="The task of lines that name none, as `mmrl train TASK` has it.")
    ] = None,
) -> None:
    """Find every bad line: keys, types, media, boxes, and answers that their own reward cannot use."""
    from mmrl.cli.console import console
    from mmrl.data.sources import locate
    from mmrl.understanding.tasks.check_data import check_data

    with console().status(f"checking {file}"):
        report = check_data(file, media, task)
    for problem in report.problems:
        typer.echo(f"{locate(file, problem.number)}: {problem.text}")
    console().print(_summary(report))
    for reward, count in sorted(report.not_scored.items()):
        typer.echo(f"{reward}: not tried on {count} answers, since it needs a model, a judge or code of your own")
    if not report.lines:
        typer.echo(f"{file}: holds no samples")
    if report.problems or not report.lines:
        raise typer.Exit(1)


@app.command()
def prepare(
    file: Source,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the prepared media go.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="media.a.b=c", help="The budget, as in training: media.video.fps=1", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Take the budget from a recipe, task or YAML file.")
    ] = None,
) -> None:
    """Decode, sample and resize all pictures and videos once, for training with media.cache=DIR."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mmrl.data.media.budget import MediaBudget
    from mmrl.data.media.reader import write_cache
    from mmrl.data.sources import load_source

    settings = _media(overrides or [], recipe)
    samples = load_source(file)
    started = time.perf_counter()
    columns = (TextColumn("preparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("preparing", total=None)
        done = write_cache(
            samples,
            out,
            MediaBudget.of(settings),
            lambda number, total: progress.update(bar, completed=number, total=total),
        )
    for problem in done.problems:
        typer.echo(problem)
    typer.echo(
        f"{out}: {done.made} media prepared, {done.kept} were there, {len(done.problems)} cannot be decoded; "
        f"{done.bytes / 1e6:.1f} MB, {time.perf_counter() - started:.1f} s"
    )
    changed = [f" {text}" for text in overrides or []]
    typer.echo(f"Train with media.cache={out}{''.join(changed)}")
    if done.problems and settings.on_error == "fail":
        typer.echo("Samples with media that cannot be decoded are left out with media.on_error=exclude.")
        raise typer.Exit(1)


def _media(overrides: list[str], recipe: str | None) -> MediaConfig:
    """Return the section `media` of a recipe, or its defaults, with the overrides applied."""
    from mmrl.config import ConfigError, load_config
    from mmrl.config.loading.load import parse_config

    if odd := [text for text in overrides if not text.startswith("media.")]:
        raise ConfigError(f"{odd[0]}: only keys of media can be set here, as media.video.max_frames=16")
    if recipe is not None:
        return load_config(recipe, [*overrides, "data.path=unused"]).media
    bare = "{name: media, policy: {kind: vlm, model: unused}, data: {path: unused}, sampling: {kind: tokens}}"
    return parse_config(bare, "media", overrides).media


def _summary(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("source")
    table.add_column("task")
    for head in ("lines", "bad", "pictures", "videos", "answers", "scored in full"):
        table.add_column(head, justify="right")
    for (source, task), tally in sorted(report.tallies.items()):
        numbers = (tally.lines, tally.bad, tally.pictures, tally.videos, tally.answers, tally.scored)
        table.add_row(Text(source or "(unread)"), Text(task or "-"), *map(str, numbers))
    return table
