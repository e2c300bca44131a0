"""What is said of the runs as wholes: their reward curves, which lead to checkpoints, and their cautions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from html import escape
from typing import Any

import gradio as gr

from mmrl.demo.error_handling import DemoError, guarded, told
from mmrl.demo.state import Kinds, Stage
from mmrl.errors import EvaluationError
from mmrl.evaluation.report.svg import HEIGHT, LEFT, RIGHT, TOP, WIDTH, smoothed, ticks
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.run_warnings import read_splits, run_warnings
from mmrl.evaluation.summary import summarise_run
from mmrl.statistics.intervals import interval_text

CLICK = """
const go = (event) => {
  const point = event.target.closest('circle[data-step]');
  if (point) trigger('click', {run: point.dataset.run, step: Number(point.dataset.step)});
};
element.addEventListener('click', go);
element.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') go(event); });
"""


def curve_panel(stage: Stage, kinds: Kinds) -> Any:
    """A component with the curve of each run, whose click says which point."""
    return gr.HTML(lambda: curves_of(stage, kinds), js_on_load=CLICK, elem_classes="mm-curves")


def curves_of(stage: Stage, kinds: Kinds) -> str:
    """The reward curve of each run; nothing of one that cannot be read."""
    parts = []
    for label, folder in stage.runs(kinds).items():
        kept = {c.step for c in stage.columns.all.values() if c.run == folder and c.step}
        try:
            parts.append(curve(read_run(folder), label, kept))
        except (EvaluationError, OSError) as err:
            parts.append(f'<p class="mm-broken">{escape(label)}: {escape(told(err))}</p>')
    return "".join(parts)


def said_of_runs(stage: Stage, kinds: Kinds) -> str:
    """Cautions, held-out rewards beside trained ones, diversity and KL of each run, in short."""
    parts = []
    for label, folder in stage.runs(kinds).items():
        try:
            parts.append(_of_run(label, read_run(folder)))
        except (EvaluationError, OSError) as err:
            parts.append(f'<p class="mm-broken" role="alert">{escape(label)}: {escape(told(err))}</p>')
    return f'<div class="mm-runs">{"".join(parts)}</div>'


def _of_run(label: str, record: RunRecord) -> str:
    facts = []
    said = []
    if record.comparable:
        summary = summarise_run(record.folder)
        for name, change in summary.changes.items():
            if name == "total" and not record.shows_total:
                continue
            held = " (held out)" if name in record.heldout else ""
            facts.append(f"{name}{held} {change.before:.3f} → {change.after:.3f}, {interval_text(change.difference)}")
        if summary.diversity:
            facts.append("diversity {:.3f} → {:.3f}".format(*summary.diversity))
        said = run_warnings(record, summary, read_splits(record.folder))
    if kl := record.curve("train", "kl"):
        facts.append(f"KL to the base {kl.values[-1]:.4g}")
    warned = "".join(f'<p class="mm-warn">{escape(label)}: {escape(text)}</p>' for text in said)
    listed = "".join(f"<li>{escape(fact)}</li>" for fact in facts) or "<li>not evaluated twice yet</li>"
    title = f"{escape(label)}: the run's own evaluation, before → after, 95 % interval of the change"
    return f"{warned}<details><summary>{title}</summary><ul>{listed}</ul></details>"


def jump(stage: Stage) -> Callable[..., Any]:
    """A handler: the checkpoint of the point that was clicked is ticked, or the nearest that was kept."""

    @guarded
    def handler(chosen: Any, point: gr.EventData) -> Any:
        run, step = getattr(point, "run", None), getattr(point, "step", None)
        if not isinstance(run, str) or not isinstance(step, int | float):
            raise DemoError("That is no point of a curve.")
        column = stage.columns.nearest(run, int(step))
        known = [name for name in chosen or [] if name in stage.columns.all]
        where = f"iteration {step:g}"
        text = f"{column.name} is chosen." if column.step == step else (
            f"No checkpoint of {where} was kept; the nearest is {column.name}, which is chosen."
        )  # fmt: skip
        return list(dict.fromkeys([*known, column.name])), f'<p role="status">{escape(text)}</p>'

    return handler


# The reward curve of a run, whose points lead to checkpoints.


BOTTOM = 22
MOST_POINTS = 60
"""Longer curves have points at every so many iterations; the line shows them all."""


def curve(record: RunRecord, label: str, kept: Collection[int]) -> str:
    """An SVG with the reward while training; a ring where a checkpoint was kept. Empty without a curve.

    Every point says which run and iteration it is of, in `data-run` and `data-step`.
    """
    found = record.curve("train", "reward/total") or record.curve("evaluation", "evaluation/total")
    if not found:
        return ""
    known = [(s, v) for s, v in zip(found.steps, found.values, strict=True) if math.isfinite(v)]
    steps, values = [s for s, _ in known], [v for _, v in known]
    low_x, high_x = min(0, *steps, *kept), max([1, *steps, *kept])
    marks = ticks(*(min(values), max(values)) if min(values) < max(values) else (values[0] - 0.5, values[0] + 0.5))
    low_y, high_y = marks[0], marks[-1]

    def place(step: float, value: float) -> tuple[float, float]:
        across = (step - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        up = (value - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="Reward of {escape(label)}">']
    for mark in marks:
        y = place(low_x, mark)[1]
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{mark:g}</text>')
    for step in ticks(low_x, high_x, whole=True):
        parts.append(f'<text x="{place(step, low_y)[0]}" y="{HEIGHT - 6}" text-anchor="middle">{step:g}</text>')
    line = smoothed(values)
    path = " ".join(f"{x},{y}" for x, y in (place(s, v) for s, v in zip(steps, line, strict=True)))
    parts.append(f'<polyline class="line" points="{path}"/>')
    heights = dict(points(steps, line, kept))
    for step, value in points(steps, values, kept):
        x, y = place(step, heights[step])
        there = "kept" if step in kept else "point"
        said = f"iteration {step}: reward {value:.3f}{', checkpoint kept' if step in kept else ''}"
        parts.append(
            f'<circle class="{there}" cx="{x}" cy="{y}" r="{6 if step in kept else 4}" data-run="{escape(label)}" '
            f'data-step="{step}" tabindex="0" role="button" aria-label="{said}"><title>{said}</title></circle>'
        )
    parts.append("</svg>")
    title = f"<figcaption>Reward while training, {escape(label)}. Rings are checkpoints; click to look.</figcaption>"
    return f'<figure class="mm-curve">{title}{"".join(parts)}</figure>'


def points(steps: Sequence[int], values: Sequence[float], kept: Collection[int]) -> list[tuple[int, float]]:
    """What can be clicked: iterations evenly, and every kept one, at the height of the nearest known value."""
    if not steps:
        return []
    every = max(1, len(steps) // MOST_POINTS)
    found = {step: value for number, (step, value) in enumerate(zip(steps, values, strict=True)) if not number % every}
    for step in kept:
        nearest = min(range(len(steps)), key=lambda number: abs(steps[number] - step))
        found[step] = values[nearest]
    return sorted(found.items())
