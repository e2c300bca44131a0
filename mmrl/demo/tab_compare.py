"""The tab that draws one prompt with several checkpoints and the same noise."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from mmrl.demo import request_validation
from mmrl.demo.error_handling import DemoError, guarded
from mmrl.demo.grid import Grid
from mmrl.demo.grid_html import grid_html, static_page
from mmrl.demo.grid_job import grid_job
from mmrl.demo.jobs import Stopped
from mmrl.demo.reward_curves import curve_panel, curves_of, jump, said_of_runs
from mmrl.demo.state import DRAWING, Stage, asked_by, choices
from mmrl.evaluation.image_grid import still

EMPTY = '<p class="mm-empty">Choose checkpoints and a prompt, then press Go. All draw from the same noise.</p>'
ENLARGED = 512  # pixels that small pictures are brought to beside one another


def compare_tab(stage: Stage, css: str) -> None:
    """Build it, inside of a tab."""
    samples = stage.samples(DRAWING)
    first = samples[0] if samples else None
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            columns = gr.CheckboxGroup(
                stage.names(DRAWING), value=stage.chosen(DRAWING), label="Checkpoints", elem_id="mm-columns"
            )
            suggestion = gr.Dropdown(
                choices(samples), value=first.id if first else None, label="A prompt of the run", filterable=True
            )
            prompt = gr.Textbox(
                value=asked_by(first) if first else "", label="Prompt", lines=2, elem_id="mm-prompt-box"
            )
            with gr.Row():
                seed = gr.Number(
                    0,
                    label="Seed",
                    precision=0,
                    minimum=0,
                    maximum=request_validation.MOST_SEED,
                    min_width=110,
                    elem_id="mm-seed",
                )
                rows = gr.Slider(
                    1, request_validation.MOST_ROWS, 4, step=1, label="Group size", min_width=110, elem_id="mm-group"
                )
            with gr.Row():
                steps = gr.Slider(
                    0,
                    request_validation.MOST_STEPS,
                    0,
                    step=1,
                    label="Steps",
                    info="0: as trained",
                    min_width=110,
                    elem_id="mm-steps",
                )
                rlg = gr.Slider(0, 5, 1, step=0.1, label="RLG strength", info="1: as trained", min_width=110)
            guidance = gr.Textbox(
                "",
                label="Guidance",
                info="Empty: as trained. Several, as 1, 2, 4: a row of the grid each.",
                elem_id="mm-guidance",
                max_lines=1,
            )
            with gr.Row():
                go = gr.Button("Go", variant="primary", elem_id="mm-go", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", elem_id="mm-cancel", min_width=100)
            curves = curve_panel(stage, DRAWING)
            jumped = gr.HTML(elem_id="mm-jumped")
        with gr.Column(scale=3, min_width=320):
            gr.HTML(lambda: said_of_runs(stage, DRAWING))
            shown = gr.HTML(EMPTY, elem_id="mm-grid")
            with gr.Row():
                left = gr.Dropdown([], label="Slide: left", min_width=140, elem_id="mm-left")
                right = gr.Dropdown([], label="Slide: right", min_width=140, elem_id="mm-right")
            slider = gr.ImageSlider(label="One over the other", max_height=ENLARGED, format="png", interactive=False)
            export = gr.DownloadButton("Export this page", interactive=False, size="sm", elem_id="mm-export")

    @guarded
    def make(
        names: Any, text: Any, sample_id: Any, number: Any, group: Any, count: Any, scales: Any, strength: Any,
        request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        asked = request_validation.checked(names, text, number, group, count, scales, strength, stage.names(DRAWING))
        session = stage.sessions.of(request.session_hash)
        sample = stage.sample(DRAWING, sample_id, asked.prompt)
        job = session.start(grid_job(stage.columns, stage.judges(DRAWING), sample, asked))
        session.grid = None
        grid = None
        try:
            for progress in job.news():
                grid = progress.grid
                yield {shown: grid_html(grid, progress.doing)}
        except Stopped:
            stopped = '<p class="mm-warn" role="status">Stopped.</p>'
            yield {shown: stopped + (grid_html(grid) if grid else "")}
        if grid is None or not grid.cells:
            return
        session.grid = grid
        names_of = cell_names(grid)
        pair = [names_of[0], names_of[-1 if len(grid.rows) == 1 else len(grid.columns) - 1]] if names_of else []
        session.exported = _write(stage, session.exported, grid, css)
        yield {
            left: gr.Dropdown(choices=names_of, value=pair[0] if pair else None),
            right: gr.Dropdown(choices=names_of, value=pair[1] if pair else None),
            slider: _pair(grid, *pair) if pair else None,
            export: gr.DownloadButton(value=session.exported, interactive=True),
        }

    @guarded
    def slide(one: Any, other: Any, request: gr.Request) -> Any:
        grid = stage.sessions.of(request.session_hash).grid
        return _pair(grid, one, other) if grid and one and other else None

    def stop(request: gr.Request) -> None:
        stage.sessions.of(request.session_hash).stop()

    @guarded
    def take(sample_id: Any) -> str:
        return asked_by(next((s for s in samples if s.id == sample_id), samples[0]))

    inputs = [columns, prompt, suggestion, seed, rows, steps, guidance, rlg]
    private: dict[str, Any] = {"api_visibility": "private"}
    go.click(make, inputs, [shown, left, right, slider, export], concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(stop, None, None, queue=False, **private)
    suggestion.input(take, suggestion, prompt, queue=False, show_progress="hidden", **private)
    for chooser in (left, right):
        chooser.input(slide, [left, right], slider, show_progress="hidden", **private)
    curves.click(jump(stage), columns, [columns, jumped], queue=False, show_progress="hidden", **private)


def cell_names(grid: Grid) -> list[str]:
    """Of the cells that hold a picture, row by row."""
    return [
        f"{column}, {label}"
        for row, label in enumerate(grid.rows)
        for column in grid.columns
        if (cell := grid.cells.get((row, column))) is not None and still(cell.media) is not None
    ]


def _pair(grid: Grid, one: Any, other: Any) -> tuple[Any, Any]:
    """
    Raises:
        DemoError: a cell that is not there.
    """
    places = {f"{c}, {label}": (row, c) for row, label in enumerate(grid.rows) for c in grid.columns}
    found = [grid.cells.get(places.get(name, (-1, ""))) for name in (one, other)]
    pictures = [still(cell.media) if cell else None for cell in found]
    if any(picture is None for picture in pictures):
        raise DemoError("There is no such picture in the grid.")
    return _enlarged(pictures[0]), _enlarged(pictures[1])


def _enlarged(image: Any) -> Any:
    factor = max(1, ENLARGED // max(image.size))
    return image.convert("RGB").resize((image.width * factor, image.height * factor), 0)  # 0: square pixels


def _write(stage: Stage, before: str | None, grid: Grid, css: str) -> str:
    """The page as a file of its own in the app's folder; a visitor has one at a time."""
    if before:
        Path(before).unlink(missing_ok=True)
    folder = stage.uploads.folder / "exported"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoints-{uuid.uuid4().hex[:12]}.html"
    around = said_of_runs(stage, DRAWING) + curves_of(stage, DRAWING)
    path.write_text(static_page(grid, around, css), encoding="utf-8")
    return str(path)
