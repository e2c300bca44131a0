"""Terminal output of a finished run: its reward curve, pictures or answers before and after, numbers, and files."""

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

from mmrl.atomic_io import named_in_errors
from mmrl.evaluation.image_grid import before_after_grid, first_of_each_source
from mmrl.evaluation.report.page import one_line
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.run_reader import EVAL_SPLITS, read_run
from mmrl.evaluation.run_warnings import read_splits, run_warnings
from mmrl.evaluation.summary import RunSummary, render, summarise, verdict_text

GRID = "before_after.png"
TILE = 18  # characters of a picture and the gap beside it


def write_grid(run: Path, pictures: int, folder: Path | None = None, until: int | None = None) -> Path | None:
    """Write the pictures before and after as one file into a folder (default: the run's), and return its path.

    With `until`, as if the run had ended at that step. Return None if the run was not evaluated twice.
    """
    found = _pictures(run, pictures, until)
    if not found:
        return None
    before, after, captions = found
    path = (folder or run) / GRID
    with named_in_errors(path):
        before_after_grid(before, after, captions).save(path)
    return path


def final_summary(run: Path, colours: bool, width: int, pictures: int = 6) -> RenderableType:
    """Return the summary of a run for a terminal, with or without evaluations.

    Pictures are drawn if the terminal has `colours`, as many per row as its `width` fits; else their file is named.
    """
    record = read_run(run)
    parts: list[RenderableType] = []
    curve = record.curve("train", "reward/total")
    if curve:
        parts += [Text("reward while training", style="bold"), Text(curve_text(curve.values)), Text()]
    if record.comparable:
        found = _pictures(run, pictures)
        if found and colours:
            parts += [Text("the same prompts and noise before (above) and after (below)", style="bold")]
            parts += [before_after(*found, columns=max(1, min(pictures, width // TILE)))]
        summary = summarise([run])
        parts += _answers(summary.runs[0], pictures, width)
        parts += render(summary, by_source=False)
        parts += [Text(verdict_text(summary.runs))] if summary.runs[0].sources else []
        parts += split_tables([run], by_source=False)
        warnings = run_warnings(record, summary.runs[0], read_splits(run))
        parts += [Text(f"Caution: {text}", style="yellow") for text in warnings]
    parts += [Text()]
    if (run / GRID).exists():
        parts += [Text(f"Pictures before and after: {run / GRID}")]
    parts += [Text(f"Report:  {run / 'report.html'}"), Text("Open it: ", end=""), Text(_open_command(run))]
    return Group(*parts)


def split_tables(runs: Sequence[Path], by_source: bool) -> list[RenderableType]:
    """Return the tables for held-out prompts and for greedy answers, for the runs that were evaluated on them."""
    tables: list[RenderableType] = []
    for split in EVAL_SPLITS:
        folders = [run / split.folder for run in runs if evaluation_steps(run / split.folder)]
        if folders:
            summary = summarise(folders)
            tables += [Text(split.heading, style="bold"), *render(summary, by_source)]
            if summary.runs[0].sources and not by_source:
                tables.append(Text(verdict_text(summary.runs)))
    return tables


def _answers(summary: RunSummary, count: int, width: int) -> list[RenderableType]:
    """Return a few prompts with the right answer and those before and after, a line each; empty for pictures."""
    before, after = (Evaluation.load(summary.folder, step, images=False) for step in summary.steps)
    if not (before.has_answers and after.has_answers):
        return []
    lines: list[RenderableType] = [Text("the same prompts before and after, with their rewards", style="bold")]
    for sample in first_of_each_source(before.sources, count)[:count]:
        lines.append(Text(one_line(before.prompts[sample], max(20, width))))
        expected = before.expected[sample] if before.expected else None
        lines_of = [("right", "", expected)] + [
            (label, _score(one, summary.headline, sample), one.answer(sample))
            for label, one in (("before", before), ("after", after))
        ]
        for label, value, text in lines_of:
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
    """Return the pictures of the first prompts before and after, and the prompts; None without pairs."""
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


def curve_text(values: Sequence[float], width: int = 60, height: int = 5) -> str:
    """Return a curve of block characters, `height` lines high, with its highest and lowest value on the left.

    Longer series are averaged into `width` columns; values that are not finite leave a blank.
    """
    columns = [_finite_mean(part) for part in _parts(list(values), width)]
    known = [value for value in columns if value is not None]
    if not known:
        return "(no values)"
    low, high = min(known), max(known)
    labels = [f"{high:.3g}"] + [""] * (height - 2) + [f"{low:.3g}"] if height > 1 else [f"{high:.3g}"]
    margin = max(len(label) for label in labels)
    levels = [None if v is None else 1 + round((v - low) / ((high - low) or 1) * (8 * height - 1)) for v in columns]
    lines = []
    for row, label in enumerate(labels):
        floor = 8 * (height - 1 - row)
        cells = "".join(" " if level is None else " ▁▂▃▄▅▆▇█"[max(0, min(8, level - floor))] for level in levels)
        lines.append(f"{label:>{margin}} {'┤' if label else '│'}{cells}".rstrip())
    return "\n".join(lines)


def picture_text(image: Image.Image, width: int = 16) -> Text:
    """Return the image in half blocks and true colour: two pixels per character, one above the other."""
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
    """Return rows of pictures before training, each above its picture after training, under its caption."""
    tables = []
    for start in range(0, len(captions), columns):
        part = slice(start, start + columns)
        table = Table.grid(padding=(0, 2, 1, 0))
        table.add_row(*(Text(caption, style="dim") for caption in captions[part]))
        table.add_row(*(picture_text(image) for image in before[part]))
        table.add_row(*(picture_text(image) for image in after[part]))
        tables.append(table)
    return Group(*tables)


def _parts(values: list[float], most: int) -> list[list[float]]:
    count = min(most, len(values))
    return [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]


def _finite_mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _hex(pixel: np.ndarray) -> str:
    red, green, blue = (int(channel) for channel in pixel)
    return f"#{red:02x}{green:02x}{blue:02x}"
