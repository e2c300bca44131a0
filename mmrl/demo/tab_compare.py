"""The tab Compare: one prompt, several checkpoints, the same noise."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from mmrl.demo.error_handling import DemoError, with_error_messages
from mmrl.demo.grid import Grid, export_page
from mmrl.demo.grid_job import grid_job, grid_updates
from mmrl.demo.request_validation import MOST_RLG, MOST_ROWS, MOST_SEED, MOST_STEPS, validate_request
from mmrl.demo.reward_curves import curve_panel, curves_html, run_notes_html, select_checkpoint
from mmrl.demo.state import IMAGE_KINDS, AppState, labelled, question_of
from mmrl.evaluation.image_grid import still

EMPTY = '<p class="mm-empty">Choose checkpoints and a prompt, then press Go. All start from the same noise.</p>'
ENLARGED = 512  # pixels to which small pictures are enlarged in the slider


def compare_tab(state: AppState, css: str) -> None:
    """Build the tab; `css` is for exported pages."""
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            columns, suggestion, prompt = prompt_inputs(state, state.names(IMAGE_KINDS), "mm-columns", "mm-prompt-box")
            with gr.Row():
                seed = gr.Number(
                    0, label="Seed", precision=0, minimum=0, maximum=MOST_SEED, min_width=110, elem_id="mm-seed"
                )
                rows = gr.Slider(1, MOST_ROWS, 4, step=1, label="Group size", min_width=110, elem_id="mm-group")
            with gr.Row():
                steps = gr.Slider(
                    0, MOST_STEPS, 0, step=1, label="Steps", info="0: as trained", min_width=110, elem_id="mm-steps"
                )
                rlg = gr.Slider(0, MOST_RLG, 1, step=0.1, label="RLG strength", info="1: as trained", min_width=110)
            several = "Empty: as trained. Several, as 1, 2, 4: a row of the grid each."
            guidance = gr.Textbox("", label="Guidance", info=several, elem_id="mm-guidance", max_lines=1)
            with gr.Row():
                go = gr.Button("Go", variant="primary", elem_id="mm-go", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", elem_id="mm-cancel", min_width=100)
            curves = curve_panel(state, IMAGE_KINDS)
            notice = gr.HTML(elem_id="mm-jumped")
        with gr.Column(scale=3, min_width=320):
            gr.HTML(lambda: run_notes_html(state, IMAGE_KINDS))
            output = gr.HTML(EMPTY, elem_id="mm-grid")
            with gr.Row():
                left = gr.Dropdown([], label="Slide: left", min_width=140, elem_id="mm-left")
                right = gr.Dropdown([], label="Slide: right", min_width=140, elem_id="mm-right")
            slider = gr.ImageSlider(label="One over the other", max_height=ENLARGED, format="png", interactive=False)
            export = gr.DownloadButton("Export this page", interactive=False, size="sm", elem_id="mm-export")

    @with_error_messages
    def on_go(
        names: Any, text: Any, sample_id: Any, number: Any, group: Any, count: Any, scales: Any, strength: Any,
        request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        validated = validate_request(names, text, number, group, count, scales, strength, state.names(IMAGE_KINDS))
        session = state.sessions.of(request)
        sample = state.sample(IMAGE_KINDS, sample_id, validated.prompt)
        job = session.start(grid_job(state.columns, state.scorer(IMAGE_KINDS), sample, validated))
        session.grid = None
        progress = None
        for progress in grid_updates(job):
            yield {output: progress.html}
        if progress is None or not progress.grid.cells:
            return
        session.grid = grid = progress.grid
        cells = list(named_pictures(grid))
        pair = [cells[0], cells[-1 if len(grid.rows) == 1 else len(grid.columns) - 1]] if cells else []
        session.exported = _write_page(state, session.exported, grid, css)
        yield {
            left: gr.Dropdown(choices=cells, value=pair[0] if pair else None),
            right: gr.Dropdown(choices=cells, value=pair[1] if pair else None),
            slider: _pair(grid, *pair) if pair else None,
            export: gr.DownloadButton(value=session.exported, interactive=True),
        }

    @with_error_messages
    def on_slide(one: Any, other: Any, request: gr.Request) -> Any:
        grid = state.sessions.of(request).grid
        return _pair(grid, one, other) if grid and one and other else None

    inputs = [columns, prompt, suggestion, seed, rows, steps, guidance, rlg]
    private: dict[str, Any] = {"api_visibility": "private"}
    go.click(
        on_go, inputs, [output, left, right, slider, export], concurrency_limit=8, show_progress="hidden", **private
    )
    cancel.click(state.sessions.stop, None, None, queue=False, **private)
    for chooser in (left, right):
        chooser.input(on_slide, [left, right], slider, show_progress="hidden", **private)
    curves.click(select_checkpoint(state), columns, [columns, notice], queue=False, show_progress="hidden", **private)


def prompt_inputs(
    state: AppState, names: list[str], columns_id: str | None = None, prompt_id: str | None = None
) -> tuple[gr.CheckboxGroup, gr.Dropdown, gr.Textbox]:
    """Build the choice of checkpoints, of a prompt of the run, and the text of the prompt."""
    samples = state.samples(IMAGE_KINDS)
    chosen = [name for name in names if name in state.columns.chosen]
    columns = gr.CheckboxGroup(names, value=chosen, label="Checkpoints", elem_id=columns_id)
    suggestion = gr.Dropdown(labelled(samples), value=samples[0].id, label="A prompt of the run", filterable=True)
    prompt = gr.Textbox(question_of(samples[0]), label="Prompt", lines=2, elem_id=prompt_id)

    @with_error_messages
    def on_suggestion(sample_id: Any) -> str:
        return state.question(IMAGE_KINDS, sample_id)

    suggestion.input(on_suggestion, suggestion, prompt, queue=False, show_progress="hidden", api_visibility="private")
    return columns, suggestion, prompt


def named_pictures(grid: Grid) -> dict[str, Image.Image]:
    """Return the pictures of a grid by the names of their cells, row by row."""
    cells = {f"{c}, {label}": grid.cells.get((row, c)) for row, label in enumerate(grid.rows) for c in grid.columns}
    pictures = {name: still(cell.media) for name, cell in cells.items() if cell is not None}
    return {name: picture for name, picture in pictures.items() if picture is not None}


def _pair(grid: Grid, one: Any, other: Any) -> tuple[Image.Image, Image.Image]:
    """Return the pictures of two cells, enlarged.

    Raises:
        DemoError: a cell does not exist, or has no picture.
    """
    pictures = named_pictures(grid)
    if one not in pictures or other not in pictures:
        raise DemoError("There is no such picture in the grid.")
    return _enlarged(pictures[one]), _enlarged(pictures[other])


def _enlarged(image: Image.Image) -> Image.Image:
    factor = max(1, ENLARGED // max(image.size))
    return image.convert("RGB").resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _write_page(state: AppState, before: str | None, grid: Grid, css: str) -> str:
    """Write the page into the app's folder and return its path; a user has one at a time."""
    if before:
        Path(before).unlink(missing_ok=True)
    folder = state.uploads.folder / "exported"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoints-{uuid.uuid4().hex[:12]}.html"
    around = run_notes_html(state, IMAGE_KINDS) + curves_html(state, IMAGE_KINDS)
    path.write_text(export_page(grid, around, css), encoding="utf-8")
    return str(path)
