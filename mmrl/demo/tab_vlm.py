"""The tab VLM: several checkpoints of a vision-language model answer a question about one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
from PIL import Image

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.demo.answer_boxes import box_outlines, enlarge, parse_answer, reference_boxes
from mmrl.demo.error_handling import DemoError, with_error_messages
from mmrl.demo.generate import GeneratedAnswers
from mmrl.demo.grid_job import grid_job, grid_updates
from mmrl.demo.request_validation import FORMATS, MOST_COLUMNS, MOST_ROWS, as_uri, heat, validate_request
from mmrl.demo.reward_curves import curve_panel, run_notes_html, select_checkpoint
from mmrl.demo.state import VLM_KINDS, AppState, labelled, question_of
from mmrl.evaluation.image_grid import prompt_image
from mmrl.understanding.tasks.definitions import BUILT_IN_TASKS

EMPTY = '<p class="mm-empty">Choose a sample of the run, or upload a picture, and press Ask.</p>'
AS_IT_STANDS = "as it stands"
PICTURES_ONLY = [
    name for name, task in BUILT_IN_TASKS.items() if task.media in ("image", "either") and not task.options
]


def vlm_tab(state: AppState) -> None:
    """Build the tab."""
    samples = state.samples(VLM_KINDS)
    first = samples[0]
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            names = state.names(VLM_KINDS)
            chosen = [name for name in names if name in state.columns.chosen]
            columns = gr.CheckboxGroup(names, value=chosen, label="Checkpoints")
            chooser = gr.Dropdown(labelled(samples), value=first.id, label="A sample of the run", filterable=True)
            upload = gr.File(
                label="Or a picture of yours", file_types=[f".{each.lower()}" for each in (*FORMATS, "jpg")],
                file_count="single", type="filepath", height=150, elem_id="mm-upload",
            )  # fmt: skip
            tasks = [AS_IT_STANDS, *PICTURES_ONLY]
            task = gr.Dropdown(tasks, value=AS_IT_STANDS, label="Task", info="The task of an upload.")
            prompt = gr.Textbox(question_of(first), label="Question", lines=2, elem_id="mm-question")
            with gr.Row():
                seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                rows = gr.Slider(1, MOST_ROWS, 1, step=1, label="Answers", min_width=110)
                temperature = gr.Slider(0, 2, 0, step=0.1, label="Temperature", info="0: the likeliest", min_width=110)
            with gr.Row():
                go = gr.Button("Ask", variant="primary", elem_id="mm-ask", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", min_width=100)
            curves = curve_panel(state, VLM_KINDS)
            notice = gr.HTML()
        with gr.Column(scale=3, min_width=320):
            gr.HTML(lambda: run_notes_html(state, VLM_KINDS))
            pictures: list[gr.AnnotatedImage] = []
            for start in range(0, MOST_COLUMNS, 2):
                with gr.Row():
                    pictures += [
                        gr.AnnotatedImage(visible=False, format="png", label=f"picture {number + 1}")
                        for number in range(start, start + 2)
                    ]
            answers = gr.HTML(EMPTY, elem_id="mm-answers")

    @with_error_messages
    def on_go(
        names: Any, sample_id: Any, sent: Any, wanted: Any, text: Any, number: Any, group: Any, value: Any,
        request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        validated = validate_request(names, text, number, group, None, "", None, state.names(VLM_KINDS))
        warmth = heat(value)
        if wanted not in tasks:
            raise DemoError("There is no such task.")
        sample, chosen_task = _sample(state, sample_id, sent, validated.prompt, wanted)
        generated: dict[str, GeneratedAnswers] = {}
        scorer = state.scorer(VLM_KINDS)
        job = grid_job(state.columns, scorer, sample, validated, warmth, chosen_task, generated.__setitem__)
        picture = prompt_image(sample, MediaReader(MediaBudget()))
        for progress in grid_updates(state.sessions.of(request).start(job)):
            shows = {
                place: _annotated(picture, name, generated[name])
                if picture is not None and name in generated
                else gr.AnnotatedImage(visible=False)
                for place, name in zip(pictures, [*validated.columns, *[""] * len(pictures)], strict=False)
            }
            yield {answers: progress.html, **shows}

    @with_error_messages
    def on_sample(sample_id: Any) -> Any:
        return state.question(VLM_KINDS, sample_id), None, AS_IT_STANDS

    private: dict[str, Any] = {"api_visibility": "private"}
    inputs = [columns, chooser, upload, task, prompt, seed, rows, temperature]
    go.click(on_go, inputs, [answers, *pictures], concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(state.sessions.stop, None, None, queue=False, **private)
    chooser.input(on_sample, chooser, [prompt, upload, task], queue=False, show_progress="hidden", **private)
    curves.click(select_checkpoint(state), columns, [columns, notice], queue=False, show_progress="hidden", **private)


def _sample(state: AppState, sample_id: Any, sent: Any, text: str, wanted: str) -> tuple[Sample, str | None]:
    """Return the sample to answer, of the upload if there is one, else of the run; and the task.

    With another question or task, a sample of the run keeps only its pictures and videos.

    Raises:
        DemoError: there is no such sample, or the upload is no picture.
    """
    task = None if wanted == AS_IT_STANDS else wanted
    if sent:
        image = state.uploads.picture(sent)
        return Sample(id="user's picture", prompt=text, images=(as_uri(image),)), task
    known = {sample.id: sample for sample in state.samples(VLM_KINDS)}
    if sample_id not in known:
        raise DemoError("There is no such sample here.")
    sample = known[sample_id]
    if question_of(sample) == text and task is None:
        return sample, None
    bare = Sample(id="user's question", prompt=text, images=sample.images, videos=sample.videos)
    return replace(bare, task=task), task


def _annotated(picture: Image.Image, name: str, generated: GeneratedAnswers) -> Any:
    """Return the picture with outlines of the boxes of the first answer, and of the true ones."""
    large = enlarge(picture)
    _, boxes = parse_answer(generated.sample, str(generated.media[0]))
    masks = box_outlines(boxes, large.size, "answered") + box_outlines(
        reference_boxes(generated.sample), large.size, "right"
    )
    return gr.AnnotatedImage(value=(large, masks), label=name, visible=True)
