"""The tab that asks several checkpoints of a vision-language model about one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
from PIL import Image

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.demo import request_validation
from mmrl.demo.answer_boxes import outlines, parsed, right_boxes, shown
from mmrl.demo.error_handling import DemoError, guarded
from mmrl.demo.generate import Made
from mmrl.demo.grid_html import grid_html
from mmrl.demo.grid_job import grid_job
from mmrl.demo.jobs import Stopped
from mmrl.demo.request_validation import FORMATS, as_uri
from mmrl.demo.reward_curves import curve_panel, jump, said_of_runs
from mmrl.demo.state import LOOKING, Stage, asked_by, choices
from mmrl.evaluation.image_grid import prompt_image
from mmrl.understanding.tasks.definitions import TASKS

EMPTY = '<p class="mm-empty">Choose a sample of the run, or upload a picture, and press Ask.</p>'
AS_IT_STANDS = "as it stands"
PICTURES_ONLY = [name for name, task in TASKS.items() if task.shows in ("picture", "either") and not task.choices]


def vlm_tab(stage: Stage) -> None:
    """Build it, inside of a tab."""
    samples = stage.samples(LOOKING)
    first = samples[0]
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            columns = gr.CheckboxGroup(stage.names(LOOKING), value=stage.chosen(LOOKING), label="Checkpoints")
            chooser = gr.Dropdown(choices(samples), value=first.id, label="A sample of the run", filterable=True)
            upload = gr.File(
                label="Or a picture of yours", file_types=[f".{each.lower()}" for each in (*FORMATS, "jpg")],
                file_count="single", type="filepath", height=150, elem_id="mm-upload",
            )  # fmt: skip
            task = gr.Dropdown(
                [AS_IT_STANDS, *PICTURES_ONLY], value=AS_IT_STANDS, label="Task", info="How an upload is asked about."
            )
            prompt = gr.Textbox(asked_by(first), label="Question", lines=2, elem_id="mm-question")
            with gr.Row():
                seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                rows = gr.Slider(1, request_validation.MOST_ROWS, 1, step=1, label="Answers", min_width=110)
                warm = gr.Slider(0, 2, 0, step=0.1, label="Temperature", info="0: the likeliest", min_width=110)
            with gr.Row():
                go = gr.Button("Ask", variant="primary", elem_id="mm-ask", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", min_width=100)
            curves = curve_panel(stage, LOOKING)
            jumped = gr.HTML()
        with gr.Column(scale=3, min_width=320):
            gr.HTML(lambda: said_of_runs(stage, LOOKING))
            pictures: list[gr.AnnotatedImage] = []
            for start in range(0, request_validation.MOST_COLUMNS, 2):
                with gr.Row():
                    pictures += [
                        gr.AnnotatedImage(visible=False, format="png", label=f"picture {number + 1}")
                        for number in range(start, start + 2)
                    ]
            answers = gr.HTML(EMPTY, elem_id="mm-answers")

    @guarded
    def make(
        names: Any, sample_id: Any, sent: Any, wanted: Any, text: Any, number: Any, group: Any, heat: Any,
        request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        asked = request_validation.checked(names, text, number, group, None, "", None, stage.names(LOOKING))
        if not isinstance(heat, int | float) or not 0 <= heat <= 2:
            raise DemoError("The temperature must be a number from 0 to 2.")
        if wanted not in (AS_IT_STANDS, *PICTURES_ONLY):
            raise DemoError("There is no such task.")
        sample, chosen_task = _sample(stage, sample_id, sent, asked.prompt, wanted)
        made: dict[str, Made] = {}
        session = stage.sessions.of(request.session_hash)
        judges = stage.judges(LOOKING)
        job = grid_job(stage.columns, judges, sample, asked, float(heat), chosen_task, made.__setitem__)
        picture = prompt_image(sample, MediaReader(MediaBudget()))
        grid = None
        try:
            for progress in session.start(job).news():
                grid = progress.grid
                shows = {
                    place: _annotated(picture, name, made[name]) if picture is not None and name in made else _hidden()
                    for place, name in zip(pictures, [*asked.columns, *[""] * len(pictures)], strict=False)
                }
                yield {answers: grid_html(grid, progress.doing), **shows}
        except Stopped:
            yield {answers: '<p class="mm-warn" role="status">Stopped.</p>' + (grid_html(grid) if grid else "")}

    @guarded
    def take(sample_id: Any) -> Any:
        return asked_by(next((s for s in samples if s.id == sample_id), first)), None, AS_IT_STANDS

    def stop(request: gr.Request) -> None:
        stage.sessions.of(request.session_hash).stop()

    private: dict[str, Any] = {"api_visibility": "private"}
    inputs = [columns, chooser, upload, task, prompt, seed, rows, warm]
    go.click(make, inputs, [answers, *pictures], concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(stop, None, None, queue=False, **private)
    chooser.input(take, chooser, [prompt, upload, task], queue=False, show_progress="hidden", **private)
    curves.click(jump(stage), columns, [columns, jumped], queue=False, show_progress="hidden", **private)


def _sample(stage: Stage, sample_id: Any, sent: Any, text: str, wanted: str) -> tuple[Sample, str | None]:
    """What is asked about: the upload if there is one, else the sample; with another question, its picture alone."""
    task = None if wanted == AS_IT_STANDS else wanted
    if sent:
        image = stage.uploads.picture(sent)
        return Sample(id="visitor's picture", prompt=text, images=(as_uri(image),)), task
    known = {sample.id: sample for sample in stage.samples(LOOKING)}
    if sample_id not in known:
        raise DemoError("There is no such sample here.")
    sample = known[sample_id]
    if asked_by(sample) == text and task is None:
        return sample, None
    bare = Sample(id="visitor's question", prompt=text, images=sample.images, videos=sample.videos)
    return replace(bare, task=task), task


def _annotated(picture: Image.Image, name: str, made: Made) -> Any:
    """The picture with the boxes of the first answer as outlines, and the true ones."""
    large = shown(picture)
    _, boxes = parsed(made.sample, str(made.media[0]))
    masks = outlines(boxes, large.size, "answered") + outlines(right_boxes(made.sample), large.size, "right")
    return gr.AnnotatedImage(value=(large, masks), label=name, visible=True)


def _hidden() -> Any:
    return gr.AnnotatedImage(visible=False)
