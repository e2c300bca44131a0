"""The tab Episodes: one or two checkpoints play a sample of their run in its environment, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from mmrl.demo.episode_job import MOST_PLAYERS, episode_job
from mmrl.demo.error_handling import DemoError, Stopped, with_error_messages
from mmrl.demo.generate import GenerationSettings
from mmrl.demo.request_validation import MOST_SEED, heat, whole
from mmrl.demo.state import AppState, labelled, question_of

EMPTY = '<p class="mm-empty">Choose one or two checkpoints and a sample of the run, and press Play.</p>'


def episodes_tab(state: AppState) -> None:
    """Build the tab."""
    samples = state.playable()
    names = state.columns.in_environment()
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            chosen = [name for name in names if name in state.columns.chosen][:MOST_PLAYERS]
            columns = gr.CheckboxGroup(names, value=chosen, label="Checkpoints", elem_id="mm-players")
            sample = gr.Dropdown(labelled(samples), value=samples[0].id, label="A sample of the run", filterable=True)
            with gr.Row():
                seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                temperature = gr.Slider(0, 2, 0, step=0.1, label="Temperature", info="0: the likeliest", min_width=110)
            with gr.Row():
                go = gr.Button("Play", variant="primary", elem_id="mm-play", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", min_width=100)
        with gr.Column(scale=3, min_width=320):
            output = gr.HTML(EMPTY, elem_id="mm-episodes")

    @with_error_messages
    def on_go(chosen: Any, sample_id: Any, number: Any, warmth: Any, request: gr.Request) -> Iterator[Any]:
        players = _players(chosen, names)
        found = next((each for each in samples if each.id == sample_id), None)
        if found is None:
            raise DemoError("There is no such sample here.")
        settings = GenerationSettings(whole(number, "The seed", 0, MOST_SEED), temperature=heat(warmth))
        job = episode_job(state.columns, players, found, question_of(found), settings)
        progress = None
        try:
            for progress in state.sessions.of(request).start(job).reports():
                yield progress.html
        except Stopped:
            if progress is not None:
                progress.doing = ""
                yield '<p class="mm-warn" role="status">Stopped.</p>' + progress.html

    private: dict[str, Any] = {"api_visibility": "private"}
    inputs = [columns, sample, seed, temperature]
    go.click(on_go, inputs, output, concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(state.sessions.stop, None, None, queue=False, **private)


def _players(chosen: Any, known: list[str]) -> list[str]:
    """Return the chosen checkpoints.

    Raises:
        DemoError: there are none or too many, or one that does not play here.
    """
    if not isinstance(chosen, list) or not all(isinstance(each, str) for each in chosen):
        raise DemoError("Checkpoints must be a list of names.")
    players = list(dict.fromkeys(chosen))
    if unknown := [each for each in players if each not in known]:
        raise DemoError(f"There is no checkpoint called {unknown[0][:60]!r} here.")
    if not 1 <= len(players) <= MOST_PLAYERS:
        raise DemoError(f"Choose 1 to {MOST_PLAYERS} checkpoints, not {len(players)}.")
    return players
