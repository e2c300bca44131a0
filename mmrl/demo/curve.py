"""The reward curve of a run, whose points lead to checkpoints."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from html import escape

from mmrl.evaluation.records import RunRecord
from mmrl.evaluation.svg import HEIGHT, LEFT, RIGHT, TOP, WIDTH, smoothed, ticks

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
