"""Reward curves of runs, whose points select checkpoints, and notes about runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from html import escape
from typing import Any

import gradio as gr

from mmrl.demo.error_handling import DemoError, error_text, with_error_messages
from mmrl.demo.state import AppState, Kinds
from mmrl.errors import EvaluationError
from mmrl.evaluation.report.svg import HEIGHT, WIDTH, axes, smoothed, ticks
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.run_warnings import read_splits, run_warnings
from mmrl.evaluation.summary import summarise_run
from mmrl.statistics.intervals import interval_text

MOST_POINTS = 60
"""Points of a curve that can be clicked; a longer curve has one per several iterations."""
CLICK = """
const go = (event) => {
  const point = event.target.closest('circle[data-step]');
  if (point) trigger('click', {run: point.dataset.run, step: Number(point.dataset.step)});
};
element.addEventListener('click', go);
element.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') go(event); });
"""


def curve_panel(state: AppState, kinds: Kinds) -> Any:
    """Return a component with the curve of each run; its click event names the point."""
    return gr.HTML(lambda: curves_html(state, kinds), js_on_load=CLICK, elem_classes="mm-curves")


def curves_html(state: AppState, kinds: Kinds) -> str:
    """Return the reward curve of each run, or its error."""
    parts = []
    for label, folder in state.runs(kinds).items():
        kept = {c.step for c in state.columns.all.values() if c.run == folder and c.step}
        try:
            parts.append(reward_curve(read_run(folder), label, kept))
        except (EvaluationError, OSError) as err:
            parts.append(f'<p class="mm-broken">{escape(label)}: {escape(error_text(err))}</p>')
    return "".join(parts)


def run_notes_html(state: AppState, kinds: Kinds) -> str:
    """Return the warnings, rewards, diversity and KL divergence of each run."""
    parts = []
    for label, folder in state.runs(kinds).items():
        try:
            parts.append(_run_note(label, read_run(folder)))
        except (EvaluationError, OSError) as err:
            parts.append(f'<p class="mm-broken" role="alert">{escape(label)}: {escape(error_text(err))}</p>')
    return f'<div class="mm-runs">{"".join(parts)}</div>'


def _run_note(label: str, record: RunRecord) -> str:
    facts: list[str] = []
    warnings: list[str] = []
    if record.comparable:
        summary = summarise_run(record.folder)
        for name, change in summary.changes.items():
            if name == "total" and not record.shows_total:
                continue
            tag = " (held out)" if name in record.heldout else ""
            facts.append(f"{name}{tag} {change.before:.3f} → {change.after:.3f}, {interval_text(change.difference)}")
        if summary.diversity:
            facts.append("diversity {:.3f} → {:.3f}".format(*summary.diversity))
        warnings = run_warnings(record, summary, read_splits(record.folder))
    if kl := record.curve("train", "kl"):
        facts.append(f"KL to the base {kl.values[-1]:.4g}")
    warned = "".join(f'<p class="mm-warn">{escape(label)}: {escape(text)}</p>' for text in warnings)
    listed = "".join(f"<li>{escape(fact)}</li>" for fact in facts) or "<li>not evaluated twice yet</li>"
    title = f"{escape(label)}: the run's own evaluation, before → after, 95 % interval of the change"
    return f"{warned}<details><summary>{title}</summary><ul>{listed}</ul></details>"


def select_checkpoint(state: AppState) -> Callable[..., Any]:
    """Return a handler that selects the checkpoint of a clicked point, or the nearest kept one."""

    @with_error_messages
    def handler(chosen: Any, point: gr.EventData) -> Any:
        run, step = getattr(point, "run", None), getattr(point, "step", None)
        if not isinstance(run, str) or not isinstance(step, int | float):
            raise DemoError("That is no point of a curve.")
        column = state.columns.nearest(run, int(step))
        known = [name for name in chosen or [] if name in state.columns.all]
        where = f"iteration {step:g}"
        text = f"{column.name} is chosen." if column.step == step else (
            f"No checkpoint of {where} was kept; the nearest is {column.name}, which is chosen."
        )  # fmt: skip
        return list(dict.fromkeys([*known, column.name])), f'<p role="status">{escape(text)}</p>'

    return handler


def reward_curve(record: RunRecord, label: str, kept: Collection[int]) -> str:
    """Return an SVG with the reward while training, with a ring at each kept checkpoint; empty without a curve.

    Every point names its run and iteration in `data-run` and `data-step`.
    """
    found = record.curve("train", "reward/total") or record.curve("evaluation", "evaluation/total")
    if not found:
        return ""
    known = [(s, v) for s, v in zip(found.steps, found.values, strict=True) if math.isfinite(v)]
    steps, values = [s for s, _ in known], [v for _, v in known]
    low_x, high_x = min(0, *steps, *kept), max([1, *steps, *kept])
    range_y = (min(values), max(values)) if min(values) < max(values) else (values[0] - 0.5, values[0] + 0.5)
    lines, place = axes((low_x, high_x), ticks(*range_y))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="Reward of {escape(label)}">', *lines]
    line = smoothed(values)
    path = " ".join(f"{x},{y}" for x, y in (place(s, v) for s, v in zip(steps, line, strict=True)))
    parts.append(f'<polyline class="line" points="{path}"/>')
    heights = dict(curve_points(steps, line, kept))
    for step, value in curve_points(steps, values, kept):
        x, y = place(step, heights[step])
        kind = "kept" if step in kept else "point"
        hint = f"iteration {step}: reward {value:.3f}{', checkpoint kept' if step in kept else ''}"
        parts.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="{6 if step in kept else 4}" data-run="{escape(label)}" '
            f'data-step="{step}" tabindex="0" role="button" aria-label="{hint}"><title>{hint}</title></circle>'
        )
    parts.append("</svg>")
    title = f"<figcaption>Reward while training, {escape(label)}. Rings are checkpoints; click to look.</figcaption>"
    return f'<figure class="mm-curve">{title}{"".join(parts)}</figure>'


def curve_points(steps: Sequence[int], values: Sequence[float], kept: Collection[int]) -> list[tuple[int, float]]:
    """Return (step, value) of the points to click: evenly spaced iterations, and all kept ones at the nearest value."""
    if not steps:
        return []
    every = max(1, len(steps) // MOST_POINTS)
    found = {step: value for number, (step, value) in enumerate(zip(steps, values, strict=True)) if not number % every}
    for step in kept:
        nearest = min(range(len(steps)), key=lambda number: abs(steps[number] - step))
        found[step] = values[nearest]
    return sorted(found.items())
