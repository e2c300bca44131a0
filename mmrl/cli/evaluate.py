"""`mmrl evaluate` and `mmrl evaluate diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from mmrl.cli.reward_settings import RewardArgs, reward_settings, weighted_rewards

if TYPE_CHECKING:
    from mmrl.evaluation.comparison import Diff, Result

DEFAULT = "SUBJECT..."
"""The name of the command that runs if no command is named."""


class EvaluateGroup(TyperGroup):
    """A group that treats an unknown command as the path of a run: `mmrl evaluate RUN`.

    A folder with the name of a command is written as `./diff`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command's name if the first argument is no command."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else [DEFAULT, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve the command; usage lines show the default command under the group's name."""
        name, command, rest = super().resolve_command(ctx, args)
        return (None if name == DEFAULT else name), command, rest


app = typer.Typer(
    cls=EvaluateGroup, help="Show what training changed, or compare checkpoints on any data with any rewards."
)


@app.command(DEFAULT, epilog="See also: mmrl evaluate diff A B, which compares two results and fails on a regression.")
def evaluate(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="SUBJECT...",
            help="Run folders. With --data or --protocol also RUN@best, RUN@40, RUN@base, models, or "
            "MODEL@http://HOST:PORT behind an OpenAI-style server.",
        ),
    ],
    fresh: Annotated[bool, typer.Option("--fresh", help="Draw and score again, with the last checkpoint.")] = False,
    protocol: Annotated[
        str | None, typer.Option(metavar="NAME", help="A benchmark as its paper takes it, or your own YAML file.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Samples; with --protocol, the folder of its files; or `shapeworld`, which ships with mmrl.",
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            "-r",
            metavar="REWARD[=WEIGHT]",
            help="A reward that scores answers; repeatable.",
            show_default="the protocol's, or the first run's",
        ),
    ] = None,
    arg: RewardArgs = None,
    draws: Annotated[
        int | None, typer.Option(min=1, help="Answers to each sample.", show_default="the protocol's, or 1")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="The number of samples, from the first.", show_default="all")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the noise, the same for all models, and of the intervals.")
    ] = 1234,
    batch: Annotated[int, typer.Option(min=1, help="Answers that are generated, and saved, together.")] = 32,
    kind: Annotated[
        Literal["pipeline", "vlm", "image_tokens"], typer.Option(help="The kind of a model that no run trained.")
    ] = "pipeline",
    api_key_env: Annotated[
        str, typer.Option(metavar="VARIABLE", help="The environment variable with the key of servers.")
    ] = "",
    base: Annotated[bool, typer.Option("--base/--no-base", help="Compare runs with their base models.")] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the results.", show_default="evaluations/NAME-<digest of the settings>"
        ),
    ] = None,
) -> None:
    """Show what training changed; with --data or --protocol, compare checkpoints: same samples, noise and settings.

    The same command continues a comparison that was interrupted.
    """
    from mmrl.config import ConfigError

    if protocol is None and data is None:
        options = {"--reward": reward, "--arg": arg, "--draws": draws, "--samples": samples, "--out": out}
        if stray := [option for option, value in options.items() if value]:
            raise ConfigError(f"{stray[0]} goes with --data or --protocol")
        _print_changes([Path(subject) for subject in subjects], fresh)
        return
    if fresh:
        raise ConfigError("--fresh goes without --data and --protocol: choose another --out to draw anew")
    from rich.console import Console

    from mmrl.evaluation.comparison.progress import comparison_display
    from mmrl.workflows.compare.comparison import CompareRequest, compare

    weights = weighted_rewards(reward or [], "--reward", unset=1.0)
    request = CompareRequest(
        models=tuple(subjects),
        protocol=protocol,
        data=data,
        rewards=weights,
        arguments=reward_settings([*weights], arg or []),
        draws=draws,
        samples=samples,
        seed=seed,
        batch=batch,
        kind=kind,
        api_key_env=api_key_env,
        bases=base,
        out=out,
    )
    display = comparison_display(Console(stderr=True))
    try:
        done = compare(request, display)
    finally:
        display.close()
    _print_result(done.result, done.folder)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A folder of results, or its result.json.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one, which must not be worse.")],
    tolerance: Annotated[
        float, typer.Option(min=0.0, metavar="X", help="The largest decline of a number that is accepted, in its unit.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two results, number by number. The exit code is 1 on a regression, 2 if they cannot be compared.

    A regression is a metric of a model in both results for which the whole 95 % interval of B - A is worse than
    -TOLERANCE (for a metric of which lower is better: lies above TOLERANCE). Samples are paired by id and prompt if
    both results contain their rows; else the interval is that of two independent numbers, which is wider.
    """
    from mmrl.evaluation.comparison import diff_results

    found = diff_results(first, second, tolerance)
    if as_json:
        from pydantic import TypeAdapter

        typer.echo(TypeAdapter(type(found)).dump_json(found, indent=1).decode())
    else:
        _print_diff(found)
    raise typer.Exit(1 if found.regressions else 0)


def _print_changes(runs: list[Path], fresh: bool) -> None:
    from mmrl.cli.console import console
    from mmrl.config import ConfigError

    if others := [run for run in runs if not (run / "config.yaml").is_file()]:
        hint = "; to compare checkpoints or models, add --data or --protocol"
        raise ConfigError("\n".join(f"{run} is not a run: it holds no config.yaml{hint}" for run in others))
    if fresh:
        from mmrl.workflows.train import evaluate_run

        for run in runs:
            evaluate_run(run)
    from mmrl.evaluation.final_summary import split_tables
    from mmrl.evaluation.summary import render, summarise

    console().print(*render(summarise(runs)), *split_tables(runs, by_source=True))


def _print_result(result: Result, folder: Path) -> None:
    from mmrl.cli.console import console
    from mmrl.cli.errors import print_error
    from mmrl.evaluation.comparison.result_tables import as_rich, result_tables, shared_folder

    folder_of_all = shared_folder(list(result.subjects))
    if folder_of_all:
        typer.echo(f"Models in {folder_of_all}")
    tables = [table for table in result_tables(result) if not table.title.startswith("By ")]
    console().print(*(as_rich(table, folder_of_all) for table in tables))
    for note in result.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"{folder / 'result.json'}\n{folder / 'result.md'}\n{folder / 'result.html'}")
    for name, error in result.failed.items():
        print_error(f"{name}: {error}")
    if result.failed:
        raise typer.Exit(1)


def _print_diff(found: Diff) -> None:
    from mmrl.cli.console import console
    from mmrl.evaluation.comparison.result_tables import as_rich, diff_table

    console().print(as_rich(diff_table(found)))
    for path, names in ((found.first, found.only_first), (found.second, found.only_second)):
        for name in names:
            typer.echo(f"Only in {path}: {name}")
    for note in found.notes:
        typer.echo(f"Note: {note}")
    worse = ", ".join(f"{change.subject} {change.label}" for change in found.regressions)
    typer.echo(f"Regression: {worse}" if worse else "No regression.")
