"""Where the time of a run went, phase by phase."""

from __future__ import annotations

import math
from html import escape
from statistics import median

from mmrl.evaluation.run_reader import RunRecord

PREFIX = "seconds/"
ALL_PHASES = "cpu"
"""The process's own time in an iteration: no phase, but a measure of all."""


def phases(record: RunRecord) -> dict[str, list[float]]:
    """Seconds of each phase, of every iteration that logged it."""
    found = {}
    for name in record.names("train", PREFIX):
        seconds = [value for value in record.curve("train", name).values if math.isfinite(value)]
        if seconds and (phase := name.removeprefix(PREFIX)) != ALL_PHASES:
            found[phase] = seconds
    return found


def time_table(record: RunRecord) -> str:
    """A table: of each phase its usual iteration, its sum and its share of all phases; empty where none was logged."""
    found = phases(record)
    total = sum(map(sum, found.values()))
    if not total:
        return ""
    rows = []
    for phase, seconds in sorted(found.items(), key=lambda each: -sum(each[1])):
        share = sum(seconds) / total
        bar = f'<span class="bar" style="width:{share:.0%}"></span>'
        numbers = "".join(
            f"<td>{text}</td>" for text in (f"{median(seconds):.2f} s", _long(sum(seconds)), f"{share:.0%}")
        )
        rows.append(f'<tr><td>{escape(phase)}</td>{numbers}<td class="bars">{bar}</td></tr>')
    heads = "".join(f"<th>{text}</th>" for text in ("phase", "an iteration (median)", "all", "share", ""))
    last = f"<tr><td>all phases</td><td></td><td>{_long(total)}</td><td></td><td></td></tr>"
    table = f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}{last}</table></div>'
    note = "Evaluations, checkpoints and loading are not in it."
    return f'<section><h2>Time</h2><p class="soft">{note}</p>{table}</section>'


def _long(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
