"""The tab with wins and losses: what changed most between a run's first and last evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
import numpy as np

from mmrl.demo.error_handling import DemoError, guarded
from mmrl.demo.grid_html import UNKNOWN, media_html
from mmrl.demo.state import Stage
from mmrl.evaluation.report.page import shortened
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.summary import summarise_run

WON, LOST = "wins first", "losses first"


def prompts_tab(stage: Stage, app: gr.Blocks) -> None:
    """Build it, inside of a tab."""
    labels = list(stage.columns.runs)
    with gr.Row():
        run = gr.Dropdown(labels, value=labels[0], label="Run", min_width=200)
        source = gr.Dropdown([EVERY_SOURCE], value=EVERY_SOURCE, label="Source", elem_id="mm-source", min_width=160)
        order = gr.Radio([WON, LOST], value=LOST, label="Order", min_width=200)
    shown = gr.HTML(elem_id="mm-wins")

    @guarded
    def show(label: Any, of: Any, first: Any) -> Any:
        if label not in stage.columns.runs:
            raise DemoError("There is no such run here.")
        found = wins(read_run(stage.columns.runs[label]))
        offered = sources_of([found])
        chosen = of if of in offered else EVERY_SOURCE
        return wins_html(found, chosen, losses_first=first == LOST), gr.Dropdown(choices=offered, value=chosen)

    inputs: list[Any] = [run, source, order]
    outputs = [shown, source]
    for each in inputs:
        each.input(show, inputs, outputs, show_progress="hidden", api_visibility="private")
    app.load(show, inputs, outputs, show_progress="hidden", api_visibility="private")


# Where a run got better and where worse, prompt by prompt, from its own evaluations.


EVERY_SOURCE = "all sources"
MOST = 40
"""Prompts on a page, of the best and of the worst together."""


@dataclass(frozen=True)
class Win:
    """One prompt before and after."""

    prompt: str
    source: str
    before: float
    after: float
    held: tuple[tuple[str, float], ...]  # by held-out reward, what it changed by
    made: tuple[Any, Any]  # a picture or a text each; None: not kept
    expected: str | None

    @property
    def change(self) -> float:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True)
class Wins:
    """Of one run, from the most won to the most lost; `reward` is what is compared."""

    reward: str
    steps: tuple[int, int]
    rows: tuple[Win, ...]

    @property
    def sources(self) -> list[str]:
        """Sorted."""
        return sorted({row.source for row in self.rows})


def wins(record: RunRecord) -> Wins | None:
    """Of a run's first and last evaluation; None where there are not two."""
    if not record.comparable:
        return None
    summary = summarise_run(record.folder)
    before, after = (Evaluation.load(record.folder, step) for step in summary.steps)
    held = [name for name in record.heldout if name in before.values and name in after.values]
    old, new = (_by_prompt(each, summary.headline) for each in (before, after))
    moved = {name: _by_prompt(after, name) - _by_prompt(before, name) for name in held}
    rows = [
        Win(
            prompt=before.prompts[number],
            source=before.sources[number],
            before=float(old[number]),
            after=float(new[number]),
            held=tuple((name, float(column[number])) for name, column in moved.items()),
            made=(_made(before, number), _made(after, number)),
            expected=before.expected[number] if before.expected else None,
        )
        for number in range(len(before.ids))
        if math.isfinite(old[number]) and math.isfinite(new[number])
    ]
    return Wins(summary.headline, summary.steps, tuple(sorted(rows, key=lambda row: -row.change)))


def wins_html(found: Wins | None, source: str = EVERY_SOURCE, losses_first: bool = False) -> str:
    """The prompts that changed most, both ways; those that did not change are counted."""
    if found is None:
        why = "This run has no two evaluations to compare: it is unfinished, or has no data.validation."
        return f'<p class="mm-empty">{why}</p>'
    rows = [row for row in found.rows if source in (EVERY_SOURCE, row.source)]
    won, lost = [row for row in rows if row.change > 0], [row for row in rows if row.change < 0][::-1]
    same = len(rows) - len(won) - len(lost)
    groups = [("Won", won), ("Lost", lost)]
    parts = [
        f'<h3>{title} ({len(group)})</h3><div class="mm-wins">{"".join(map(_card, group[: MOST // 2]))}</div>'
        for title, group in (groups[::-1] if losses_first else groups)
        if group
    ]
    head = (
        f"<p>{escape(found.reward)}, iteration {found.steps[0]} against {found.steps[1]}: {len(won)} won, {len(lost)} "
        f"lost, {same} the same.</p>"
    )
    return head + "".join(parts)


def _card(row: Win) -> str:
    sign = "up" if row.change > 0 else "down"
    pair = ""
    if any(made is not None for made in row.made):
        shown = (
            UNKNOWN if made is None else f"<small>{label}</small>{media_html(made, f'{row.prompt} ({label})')}"
            for label, made in zip(("before", "after"), row.made, strict=True)
        )
        pair = '<div class="mm-pair">' + "".join(f"<div>{each}</div>" for each in shown) + "</div>"
    right = f"<small>right: {escape(shortened(row.expected, 200))}</small>" if row.expected else ""
    held = "".join(f"<small>held out {escape(name)} {by:+.3f}</small>" for name, by in row.held if math.isfinite(by))
    return (
        f'<article><p>{escape(shortened(row.prompt, 300))} <span class="mm-tag">{escape(row.source)}</span></p>{pair}'
        f'<p><span class="{sign}">{row.change:+.3f}</span> <small>{row.before:.3f} → {row.after:.3f}</small>'
        f"{held}{right}</p></article>"
    )


def _by_prompt(evaluation: Evaluation, name: str) -> Any:
    values = evaluation.by_prompt(name).astype(np.float64)
    known = np.isfinite(values)
    counts = known.sum(1)
    return np.where(counts > 0, np.where(known, values, 0).sum(1) / np.maximum(counts, 1), np.nan)


def _made(evaluation: Evaluation, sample: int) -> Any:
    answer = evaluation.answer(sample)
    return answer if answer is not None else evaluation.images[sample * evaluation.draws]


def sources_of(found: Sequence[Wins | None]) -> list[str]:
    """The choices of a filter."""
    names = {source for each in found if each is not None for source in each.sources}
    return [EVERY_SOURCE, *sorted(names)] if len(names) > 1 else [EVERY_SOURCE]
