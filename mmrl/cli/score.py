"""`mmrl score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmrl.cli.reward_settings import RewardArgs, reward_settings

if TYPE_CHECKING:
    from rich.table import Table

    from mmrl.evaluation.score_folder import ScoreRow


def score(
    reward: Annotated[
        list[str],
        typer.Option(
            "--reward", "-r", metavar="REWARD", help="As in `mmrl rewards list`, or FILE.py:NAME; repeatable."
        ),
    ],
    images: Annotated[Path, typer.Option(metavar="DIR", help="The pictures.")],
    prompts: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="What they were drawn for: .jsonl, where sample `a1` has a1.png or the folder a1; or .txt, where the "
            "lines are in the order of the pictures' names.",
        ),
    ],
    arg: RewardArgs = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables and page go.")] = Path("scores"),
) -> None:
    """Score pictures: a table, and a page of the best and the worst."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mmrl.cli.console import console
    from mmrl.cli.errors import print_error
    from mmrl.evaluation import score_folder
    from mmrl.evaluation.report.scoring_page import write_page
    from mmrl.rewards import RewardSuite, load

    settings = reward_settings(reward, arg or [])
    pairings, unused = score_folder.pair_up(images, prompts)
    suite = RewardSuite([(load(name, **settings[name]), 1.0) for name in reward])
    out.mkdir(parents=True, exist_ok=True)
    rows: list[ScoreRow] = []
    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    with score_folder.open_lines(out) as lines, progress:
        task = progress.add_task("scoring", total=len(pairings))
        for scored in score_folder.score(pairings, suite):
            rows += scored
            score_folder.write_lines(scored, lines)
            progress.advance(task, len(scored))
            if len(rows) == len(scored) < len(pairings) and not _any_scored(rows):
                progress.console.print(f"None of the first {len(rows)} could be scored: {_reason(rows)}", markup=False)
    suite.close()

    score_folder.write_table(rows, out)
    facts = {"Pictures in": str(images), "Prompts in": str(prompts)}
    texts = {name: ", ".join(f"{key}={value}" for key, value in settings[name].items()) for name in reward}
    facts |= {name: text for name, text in texts.items() if text}
    write_page(rows, score_folder.lower_names(rows), facts, out / "index.html")
    console().print(_table(rows))
    if unused:
        typer.echo(f"{unused} pictures in {images} belong to no sample of {prompts}, and were left out.")
    typer.echo(f"{out / 'scores.csv'}, {out / 'scores.jsonl'}\n{out / 'index.html'}")
    if not _any_scored(rows):
        print_error(f"nothing could be scored: {_reason(rows)}")
        raise typer.Exit(1)


def _any_scored(rows: list[ScoreRow]) -> bool:
    return any(status in ("ok", "invalid") for row in rows for status in row.status.values())


def _reason(rows: list[ScoreRow]) -> str:
    return next((f"{name}: {text}" for row in rows for name, text in row.detail.items()), "no reason was given")


def _table(rows: list[ScoreRow]) -> Table:
    from statistics import fmean

    from rich.table import Table
    from rich.text import Text

    from mmrl.evaluation import score_folder

    table = Table(box=None)
    table.add_column("score")
    for head in ("mean", "lowest", "highest", "ok", "invalid", "error", "timeout"):
        table.add_column(head, justify="right")
    table.add_column("why")
    for name in score_folder.score_names(rows):
        values, counted = score_folder.known(rows, name), score_folder.counts(rows, name)
        numbers = [f"{each:.4g}" for each in (fmean(values), min(values), max(values))] if values else ["-"] * 3
        reasons = ", ".join(f"{kind} {n}" for kind, n in score_folder.kinds(rows, name).most_common())
        if detail := score_folder.reason(rows, name):
            reasons = f"{reasons}: {detail}"
        states = [str(counted[status]) for status in ("ok", "invalid", "error", "timeout")]
        table.add_row(Text(name), *numbers, *states, Text(reasons))
    return table
