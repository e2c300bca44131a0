"""What is said of the runs as wholes: their reward curves, which lead to checkpoints, and their cautions."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from mmrl.demo.curve import curve
from mmrl.demo.errors import DemoError, told
from mmrl.demo.stage import Kinds, Stage
from mmrl.demo.told import guarded
from mmrl.evaluation.cautions import cautions, inner_sets
from mmrl.evaluation.errors import EvaluationError
from mmrl.evaluation.records import RunRecord, read_run
from mmrl.evaluation.summary import interval_text, summarise_run

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
        except (EvaluationError, OSError) as why:
            parts.append(f'<p class="mm-broken">{escape(label)}: {escape(told(why))}</p>')
    return "".join(parts)


def said_of_runs(stage: Stage, kinds: Kinds) -> str:
    """Cautions, held-out rewards beside trained ones, diversity and KL of each run, in short."""
    parts = []
    for label, folder in stage.runs(kinds).items():
        try:
            parts.append(_of_run(label, read_run(folder)))
        except (EvaluationError, OSError) as why:
            parts.append(f'<p class="mm-broken" role="alert">{escape(label)}: {escape(told(why))}</p>')
    return f'<div class="mm-runs">{"".join(parts)}</div>'


def _of_run(label: str, record: RunRecord) -> str:
    facts = []
    said = []
    if record.comparable:
        summary = summarise_run(record.folder)
        for name, change in summary.changes.items():
            if name == "total" and not record.shows_total:
                continue
            held = " (held out)" if name in record.watched else ""
            facts.append(f"{name}{held} {change.before:.3f} → {change.after:.3f}, {interval_text(change.difference)}")
        if summary.diversity:
            facts.append("diversity {:.3f} → {:.3f}".format(*summary.diversity))
        said = cautions(record, summary, inner_sets(record.folder))
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
