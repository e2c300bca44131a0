"""What a finished run prints: its curve, its pictures before and after, its numbers, and how to see more."""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from rich.console import Group, RenderableType
from rich.text import Text

from mmrl.evaluation.grid import before_after_grid, curve_text
from mmrl.evaluation.records import HELDOUT, read_run
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.summary import render, summarise
from mmrl.evaluation.terminal import before_after

GRID = "before_after.png"
TILE = 18  # characters that a picture and the gap beside it take


def write_grid(run: Path, pictures: int) -> Path | None:
    """Write the pictures before and after as one file into a run folder; None if it was not evaluated twice."""
    shown = _pictures(run, pictures)
    if not shown:
        return None
    before, after, captions = shown
    path = run / GRID
    before_after_grid(before, after, captions).save(path)
    return path


def outcome(run: Path, colours: bool, width: int, pictures: int = 6) -> RenderableType:
    """The end of a run, for a terminal. Works without evaluations too.

    Pictures are drawn where the terminal has `colours`, as many a row as its `width` takes, and named elsewhere.
    """
    record = read_run(run)
    parts: list[RenderableType] = []
    curve = record.curve("train", "reward/total")
    if curve:
        parts += [Text("reward while training", style="bold"), Text(curve_text(curve.values)), Text()]
    if record.comparable:
        shown = _pictures(run, pictures)
        if shown and colours:
            parts += [Text("the same prompts and noise before (above) and after (below)", style="bold")]
            parts += [before_after(*shown, columns=max(1, min(pictures, width // TILE)))]
        parts += render(summarise([run]), by_source=False)
        parts += heldout_tables([run])
    parts += [Text()]
    if (run / GRID).exists():
        parts += [Text(f"Pictures before and after: {run / GRID}")]
    parts += [Text(f"Report:  {run / 'report.html'}"), Text("Open it: ", end=""), Text(_open_command(run))]
    return Group(*parts)


def heldout_tables(runs: list[Path]) -> list[RenderableType]:
    """The same tables for the held-out compositions, where the runs were evaluated on some."""
    inner = [run / HELDOUT for run in runs if evaluation_steps(run / HELDOUT)]
    return (
        [Text("on compositions held out from training", style="bold"), *render(summarise(inner), by_source=False)]
        if inner
        else []
    )


def _pictures(run: Path, count: int) -> tuple[list[Image.Image], list[Image.Image], list[str]] | None:
    """The first prompts' pictures before and after, and the prompts."""
    steps = evaluation_steps(run)
    if len(steps) < 2:
        return None
    before, after = Evaluation.load(run, 0), Evaluation.load(run, steps[-1])
    pairs = [
        (first, last, prompt)
        for first, last, prompt in zip(
            before.images[:: before.draws], after.images[:: after.draws], before.prompts, strict=True
        )
        if first is not None and last is not None
    ][:count]
    if not pairs:
        return None
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs], [pair[2] for pair in pairs]


def _open_command(run: Path) -> str:
    return f"python -m webbrowser {(run / 'report.html').resolve().as_uri()}"
