"""What a finished run prints: its curve, its pictures before and after, its numbers, and how to see more."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from mmrl.evaluation.grid import curve_text
from mmrl.evaluation.records import read_run
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.summary import render, summarise
from mmrl.evaluation.terminal import before_after


def outcome(run: Path, pictures: int = 6) -> RenderableType:
    """The end of a run, for a terminal. Works without evaluations too."""
    record = read_run(run)
    parts: list[RenderableType] = []
    curve = record.curve("train", "reward/total")
    if curve:
        parts += [Text("reward while training", style="bold"), Text(curve_text(curve.values)), Text()]
    steps = evaluation_steps(run)
    if len(steps) > 1:
        parts += _pictures(run, steps[-1], pictures)
        parts += render(summarise([run]))[:1]  # by source: `mmrl evaluate`
        parts += heldout_tables([run])[:2]
    parts += [Text(), Text(f"Report:  {run / 'report.html'}"), Text("Open it: ", end=""), Text(_open_command(run))]
    return Group(*parts)


def heldout_tables(runs: list[Path]) -> list[RenderableType]:
    """The same tables for the held-out compositions, where the runs were evaluated on some."""
    inner = [run / "heldout" for run in runs if evaluation_steps(run / "heldout")]
    return [Text("on compositions held out from training", style="bold"), *render(summarise(inner))] if inner else []


def _pictures(run: Path, last: int, count: int) -> list[RenderableType]:
    before, after = Evaluation.load(run, 0), Evaluation.load(run, last)
    rows = [i for i in range(len(before.ids)) if before.images[i * before.draws] is not None][:count]
    shown = [
        (before.images[i * before.draws], after.images[i * after.draws], before.prompts[i])
        for i in rows
        if after.images[i * after.draws] is not None
    ]
    if not shown:
        return []
    first, second, captions = zip(*shown, strict=True)
    return [
        Text("the same prompts and noise before (above) and after (below)", style="bold"),
        before_after(list(first), list(second), list(captions)),
    ]


def _open_command(run: Path) -> str:
    return f"python -m webbrowser {(run / 'report.html').resolve().as_uri()}"
