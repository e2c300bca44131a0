"""The tab with wins and losses: what changed most between a run's first and last evaluation."""

from __future__ import annotations

from typing import Any

import gradio as gr

from mmrl.demo.errors import DemoError
from mmrl.demo.stage import Stage
from mmrl.demo.told import guarded
from mmrl.demo.wins import EVERY_SOURCE, sources_of, wins, wins_html
from mmrl.evaluation.records import read_run

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
