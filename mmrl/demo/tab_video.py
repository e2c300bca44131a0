"""The tab that plays the videos of several checkpoints together."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import gradio as gr

from mmrl.demo import request_validation
from mmrl.demo.error_handling import DemoError, guarded
from mmrl.demo.grid import Grid
from mmrl.demo.grid_html import grid_html
from mmrl.demo.grid_job import grid_job
from mmrl.demo.jobs import Stopped
from mmrl.demo.state import DRAWING, Stage, asked_by, choices
from mmrl.demo.video_clips import Clip, clip_from, clip_of, clips_html

MOST_FILES = 12


def video_tab(stage: Stage) -> None:
    """Build it, inside of a tab: videos that are made here, and those in the folders of runs."""
    if makers := stage.with_videos():
        _made_here(stage, makers)
    else:
        gr.HTML('<p class="mm-empty">No checkpoint here draws videos; these are the files in the runs\' samples.</p>')
    if files := stage.video_files():
        run = gr.Dropdown(list(files), value=next(iter(files)), label="Videos in the samples of")
        kept = gr.HTML(lambda: _kept(stage, next(iter(files))), elem_id="mm-kept-clips")
        run.input(guarded(lambda label: _kept(stage, label)), run, kept, queue=False, api_visibility="private")


def _made_here(stage: Stage, makers: list[str]) -> None:
    samples = stage.samples(DRAWING)
    first = samples[0] if samples else None
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            columns = gr.CheckboxGroup(
                makers, value=[n for n in makers if n in stage.columns.chosen], label="Checkpoints"
            )
            suggestion = gr.Dropdown(choices(samples), value=first.id if first else None, label="A prompt of the run")
            prompt = gr.Textbox(asked_by(first) if first else "", label="Prompt", lines=2)
            with gr.Row():
                seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                steps = gr.Slider(
                    0, request_validation.MOST_STEPS, 0, step=1, label="Steps", info="0: as trained", min_width=110
                )
            with gr.Row():
                go = gr.Button("Draw", variant="primary", elem_id="mm-film", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", min_width=100)
        with gr.Column(scale=3, min_width=320):
            clips = gr.HTML('<p class="mm-empty">Press Draw.</p>', elem_id="mm-clips")
            scores = gr.HTML()

    @guarded
    def make(names: Any, text: Any, sample_id: Any, number: Any, count: Any, request: gr.Request) -> Iterator[Any]:
        asked = request_validation.checked(names, text, number, 1, count, "", None, makers)
        sample = stage.sample(DRAWING, sample_id, asked.prompt)
        session = stage.sessions.of(request.session_hash)
        job = session.start(grid_job(stage.columns, stage.judges(DRAWING), sample, asked))
        grid = None
        try:
            for progress in job.news():
                grid = progress.grid
                yield {scores: grid_html(grid, progress.doing)}
        except Stopped:
            yield {scores: '<p class="mm-warn" role="status">Stopped.</p>'}
        if grid is not None:
            yield {clips: clips_html(_clips(grid))}

    @guarded
    def take(sample_id: Any) -> str:
        return asked_by(next((s for s in samples if s.id == sample_id), samples[0]))

    def stop(request: gr.Request) -> None:
        stage.sessions.of(request.session_hash).stop()

    private: dict[str, Any] = {"api_visibility": "private"}
    inputs = [columns, prompt, suggestion, seed, steps]
    go.click(make, inputs, [clips, scores], concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(stop, None, None, queue=False, **private)
    suggestion.input(take, suggestion, prompt, queue=False, show_progress="hidden", **private)


def _clips(grid: Grid) -> list[Clip]:
    cells = [(column, grid.cells.get((0, column))) for column in grid.columns]
    return [clip_of(column, cell.media) for column, cell in cells if cell is not None and isinstance(cell.media, list)]


def _kept(stage: Stage, label: Any) -> str:
    """The first video files in a run's samples.

    Raises:
        DemoError: no run here is called so.
    """
    files = stage.video_files().get(label)
    if files is None:
        raise DemoError("There are no videos of such a run here.")
    folder = stage.columns.runs[label]
    found = [clip_from(str(p.relative_to(folder / "samples")), p, folder) for p in files[:MOST_FILES]]
    more = f"<p>{len(files) - MOST_FILES} more files are not shown.</p>" if len(files) > MOST_FILES else ""
    large = sum(clip is None for clip in found)
    skipped = f"<p>{large} files are too large to be shown.</p>" if large else ""
    return f"<p>{escape(label)}</p>{clips_html([clip for clip in found if clip])}{more}{skipped}"
