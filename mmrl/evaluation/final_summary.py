"""What a finished run prints: its curve, its pictures or answers before and after, its numbers, and how to see more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from mmrl.evaluation.image_grid import before_after_grid, curve_text, first_of_each_source
from mmrl.evaluation.report.page import one_line
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.run_reader import EVAL_SPLITS, read_run
from mmrl.evaluation.run_warnings import cautions, read_splits
from mmrl.evaluation.summary import RunSummary, render, summarise, verdict_text

GRID = "before_after.png"
TILE = 18  # characters that a picture and the gap beside it take


def write_grid(run: Path, pictures: int, folder: Path | None = None, until: int | None = None) -> Path | None:
    """Write the pictures before and after as one file into a folder, the run's own if none is named; None if it was not
    evaluated twice. With `until`, as if the run had ended at that step.
    """
    shown = _pictures(run, pictures, until)
    if not shown:
        return None
    before, after, captions = shown
    path = (folder or run) / GRID
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
        summary = summarise([run])
        parts += _answers(summary.runs[0], pictures, width)
        parts += render(summary, by_source=False)
        parts += [Text(verdict_text(summary.runs))] if summary.runs[0].sources else []
        parts += split_tables([run], by_source=False)
        told = cautions(record, summary.runs[0], read_splits(run))
        parts += [Text(f"Caution: {text}", style="yellow") for text in told]
    parts += [Text()]
    if (run / GRID).exists():
        parts += [Text(f"Pictures before and after: {run / GRID}")]
    parts += [Text(f"Report:  {run / 'report.html'}"), Text("Open it: ", end=""), Text(_open_command(run))]
    return Group(*parts)


def split_tables(runs: Sequence[Path], by_source: bool) -> list[RenderableType]:
    """The same tables for held-out compositions and for greedy answers, where the runs were evaluated on them."""
    tables: list[RenderableType] = []
    for inner in EVAL_SPLITS:
        folders = [run / inner.folder for run in runs if evaluation_steps(run / inner.folder)]
        if folders:
            summary = summarise(folders)
            tables += [Text(inner.heading, style="bold"), *render(summary, by_source)]
            if summary.runs[0].sources and not by_source:
                tables.append(Text(verdict_text(summary.runs)))
    return tables


def _answers(summary: RunSummary, count: int, width: int) -> list[RenderableType]:
    """A few prompts, each a line, with what is right and what was answered before and after; nothing of pictures."""
    before, after = (Evaluation.load(summary.folder, step, images=False) for step in summary.steps)
    if not (before.has_answers and after.has_answers):
        return []
    lines: list[RenderableType] = [Text("the same prompts before and after, with their rewards", style="bold")]
    for sample in first_of_each_source(before.sources, count)[:count]:
        lines.append(Text(one_line(before.prompts[sample], max(20, width))))
        expected = before.expected[sample] if before.expected else None
        told = [("right", "", expected)] + [
            (label, _score(one, summary.headline, sample), one.answer(sample))
            for label, one in (("before", before), ("after", after))
        ]
        for label, value, text in told:
            if text is not None:
                room = max(20, width - 16)
                lines.append(Text.assemble((f"  {label:<7}{value:>6} ", "dim"), one_line(text, room) or "(nothing)"))
    return [*lines, Text()]


def _score(evaluation: Evaluation, name: str, sample: int) -> str:
    value = float(evaluation.by_prompt(name)[sample, 0])
    return f"{value:.2f}" if math.isfinite(value) else "-"


def _pictures(
    run: Path, count: int, until: int | None = None
) -> tuple[list[Image.Image], list[Image.Image], list[str]] | None:
    """The first prompts' pictures before and after, and the prompts."""
    steps = [step for step in evaluation_steps(run) if until is None or step <= until]
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


# Pictures in a terminal: two pixels a character, drawn with half blocks and true colour.


def picture_text(image: Image.Image, width: int = 16) -> Text:
    """The image, `width` characters wide and half as many lines high if it is square."""
    height = max(2, round(image.height / image.width * width / 2) * 2)
    pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BOX))
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", Style(color=_hex(above), bgcolor=_hex(below)))
        text.append("\n")
    text.right_crop(1)
    return text


def before_after(
    before: Sequence[Image.Image],
    after: Sequence[Image.Image],
    captions: Sequence[str],
    columns: int = 6,
) -> RenderableType:
    """Rows of pictures before training, each above its picture after training, under its caption."""
    tables = []
    for start in range(0, len(captions), columns):
        part = slice(start, start + columns)
        table = Table.grid(padding=(0, 2, 1, 0))
        table.add_row(*(Text(caption, style="dim") for caption in captions[part]))
        table.add_row(*(picture_text(image) for image in before[part]))
        table.add_row(*(picture_text(image) for image in after[part]))
        tables.append(table)
    return Group(*tables)


def _hex(pixel: np.ndarray) -> str:
    red, green, blue = (int(channel) for channel in pixel)
    return f"#{red:02x}{green:02x}{blue:02x}"
