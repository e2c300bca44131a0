"""The tab Prompts: the largest wins and losses between a run's first and last evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
import numpy as np

from mmrl.demo.error_handling import DemoError, with_error_messages
from mmrl.demo.grid import UNKNOWN, media_html
from mmrl.demo.state import AppState
from mmrl.evaluation.report.page import shortened
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.evaluation.summary import summarise_run

WON, LOST = "wins first", "losses first"
EVERY_SOURCE = "all sources"
MOST = 40
"""Prompts on the page, of the best and the worst together."""


def prompts_tab(state: AppState, app: gr.Blocks) -> None:
    """Build the tab."""
    labels = list(state.columns.runs)
    with gr.Row():
        run = gr.Dropdown(labels, value=labels[0], label="Run", min_width=200)
        source = gr.Dropdown([EVERY_SOURCE], value=EVERY_SOURCE, label="Source", elem_id="mm-source", min_width=160)
        order = gr.Radio([WON, LOST], value=LOST, label="Order", min_width=200)
    output = gr.HTML(elem_id="mm-wins")

    @with_error_messages
    def on_change(label: Any, of: Any, first: Any) -> Any:
        if label not in state.columns.runs:
            raise DemoError("There is no such run here.")
        found = prompt_changes(read_run(state.columns.runs[label]))
        offered = source_choices(found)
        chosen = of if of in offered else EVERY_SOURCE
        html = prompt_changes_html(found, chosen, losses_first=first == LOST)
        return html, gr.Dropdown(choices=offered, value=chosen)

    inputs: list[Any] = [run, source, order]
    outputs = [output, source]
    for each in inputs:
        each.input(on_change, inputs, outputs, show_progress="hidden", api_visibility="private")
    app.load(on_change, inputs, outputs, show_progress="hidden", api_visibility="private")


@dataclass(frozen=True)
class PromptChange:
    """The change of one prompt, before and after training."""

    prompt: str
    source: str
    before: float
    after: float
    heldout: tuple[tuple[str, float], ...]  # (held-out reward, its change)
    answers: tuple[Any, Any]  # a picture or a text each; None: not kept
    expected: str | None

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class PromptChanges:
    """The changes of all prompts of a run in one reward, from the largest gain to the largest loss."""

    reward: str
    steps: tuple[int, int]
    rows: tuple[PromptChange, ...]


def prompt_changes(record: RunRecord) -> PromptChanges | None:
    """Return the changes between a run's first and last evaluation; None without two."""
    if not record.comparable:
        return None
    summary = summarise_run(record.folder)
    before, after = (Evaluation.load(record.folder, step) for step in summary.steps)
    heldout = [name for name in record.heldout if name in before.values and name in after.values]
    old, new = (_by_prompt(each, summary.headline) for each in (before, after))
    moved = {name: _by_prompt(after, name) - _by_prompt(before, name) for name in heldout}
    rows = [
        PromptChange(
            prompt=before.prompts[number],
            source=before.sources[number],
            before=float(old[number]),
            after=float(new[number]),
            heldout=tuple((name, float(column[number])) for name, column in moved.items()),
            answers=(_answer(before, number), _answer(after, number)),
            expected=before.expected[number] if before.expected else None,
        )
        for number in range(len(before.ids))
        if math.isfinite(old[number]) and math.isfinite(new[number])
    ]
    return PromptChanges(summary.headline, summary.steps, tuple(sorted(rows, key=lambda row: -row.change)))


def prompt_changes_html(found: PromptChanges | None, source: str = EVERY_SOURCE, losses_first: bool = False) -> str:
    """Return the prompts with the largest gains and losses, and the number of unchanged ones."""
    if found is None:
        text = "This run has no two evaluations to compare: it is unfinished, or has no data.validation."
        return f'<p class="mm-empty">{text}</p>'
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


def _card(row: PromptChange) -> str:
    sign = "up" if row.change > 0 else "down"
    pair = ""
    if any(answer is not None for answer in row.answers):
        sides = (
            UNKNOWN if answer is None else f"<small>{label}</small>{media_html(answer, f'{row.prompt} ({label})')}"
            for label, answer in zip(("before", "after"), row.answers, strict=True)
        )
        pair = '<div class="mm-pair">' + "".join(f"<div>{each}</div>" for each in sides) + "</div>"
    right = f"<small>right: {escape(shortened(row.expected, 200))}</small>" if row.expected else ""
    heldout = "".join(
        f"<small>held out {escape(name)} {by:+.3f}</small>" for name, by in row.heldout if math.isfinite(by)
    )
    return (
        f'<article><p>{escape(shortened(row.prompt, 300))} <span class="mm-tag">{escape(row.source)}</span></p>{pair}'
        f'<p><span class="{sign}">{row.change:+.3f}</span> <small>{row.before:.3f} → {row.after:.3f}</small>'
        f"{heldout}{right}</p></article>"
    )


def _by_prompt(evaluation: Evaluation, name: str) -> Any:
    values = np.ma.masked_invalid(evaluation.by_prompt(name).astype(np.float64))
    return values.mean(axis=1).filled(np.nan)


def _answer(evaluation: Evaluation, sample: int) -> Any:
    answer = evaluation.answer(sample)
    return answer if answer is not None else evaluation.images[sample * evaluation.draws]


def source_choices(found: PromptChanges | None) -> list[str]:
    """Return the choices of the source filter."""
    names = {row.source for row in found.rows} if found else set()
    return [EVERY_SOURCE, *sorted(names)] if len(names) > 1 else [EVERY_SOURCE]
