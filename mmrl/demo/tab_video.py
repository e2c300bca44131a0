"""The tab Video: the videos of several checkpoints, played together."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import gradio as gr

from mmrl.demo.error_handling import DemoError, with_error_messages
from mmrl.demo.grid_job import grid_job, grid_updates
from mmrl.demo.request_validation import MOST_STEPS, validate_request
from mmrl.demo.state import IMAGE_KINDS, AppState
from mmrl.demo.tab_compare import prompt_inputs
from mmrl.demo.video_clips import clips_html, encode_clip, read_clip

MOST_FILES = 12  # video files of a run on the page


def video_tab(state: AppState) -> None:
    """Build the tab: videos that are generated here, and those in the folders of runs."""
    if generators := state.with_videos():
        _generate_here(state, generators)
    else:
        gr.HTML(
            '<p class="mm-empty">No checkpoint here generates videos; these are the files in the runs\' samples.</p>'
        )
    if files := state.video_files():
        run = gr.Dropdown(list(files), value=next(iter(files)), label="Videos in the samples of")
        kept = gr.HTML(lambda: _files_html(state, next(iter(files))), elem_id="mm-kept-clips")
        handler = with_error_messages(lambda label: _files_html(state, label))
        run.input(handler, run, kept, queue=False, api_visibility="private")


def _generate_here(state: AppState, generators: list[str]) -> None:
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            columns, suggestion, prompt = prompt_inputs(state, generators)
            with gr.Row():
                seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                steps = gr.Slider(0, MOST_STEPS, 0, step=1, label="Steps", info="0: as trained", min_width=110)
            with gr.Row():
                go = gr.Button("Draw", variant="primary", elem_id="mm-film", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", min_width=100)
        with gr.Column(scale=3, min_width=320):
            clips = gr.HTML('<p class="mm-empty">Press Draw.</p>', elem_id="mm-clips")
            scores = gr.HTML()

    @with_error_messages
    def on_go(names: Any, text: Any, sample_id: Any, number: Any, count: Any, request: gr.Request) -> Iterator[Any]:
        validated = validate_request(names, text, number, 1, count, "", None, generators)
        sample = state.sample(IMAGE_KINDS, sample_id, validated.prompt)
        job = grid_job(state.columns, state.scorer(IMAGE_KINDS), sample, validated)
        progress = None
        for progress in grid_updates(state.sessions.of(request).start(job)):
            yield {scores: progress.html}
        if progress is not None:
            cells = {name: progress.grid.cells.get((0, name)) for name in validated.columns}
            videos = {name: cell.media for name, cell in cells.items() if cell and isinstance(cell.media, list)}
            yield {clips: clips_html([encode_clip(name, frames) for name, frames in videos.items()])}

    private: dict[str, Any] = {"api_visibility": "private"}
    inputs = [columns, prompt, suggestion, seed, steps]
    go.click(on_go, inputs, [clips, scores], concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(state.sessions.stop, None, None, queue=False, **private)


def _files_html(state: AppState, label: Any) -> str:
    """Return the HTML of the first video files in a run's samples.

    Raises:
        DemoError: no run here has this name, or it has no videos.
    """
    files = state.video_files().get(label)
    if files is None:
        raise DemoError("There are no videos of such a run here.")
    folder = state.columns.runs[label]
    found = [read_clip(str(p.relative_to(folder / "samples")), p, folder) for p in files[:MOST_FILES]]
    more = f"<p>{len(files) - MOST_FILES} more files are not shown.</p>" if len(files) > MOST_FILES else ""
    large = sum(clip is None for clip in found)
    skipped = f"<p>{large} files are too large to be shown.</p>" if large else ""
    return f"<p>{escape(label)}</p>{clips_html([clip for clip in found if clip])}{more}{skipped}"
