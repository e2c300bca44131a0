"""Data sets of questions for a VLM: training, development and validation, the tasks by turns.

The `vlm-*` splits have the tasks on which the embedded model was pre-trained, the `vlm-new-*` splits four other tasks.
`vlm-detection-train` and `vlm-grounding+math-train` are the questions of some tasks of `vlm-train`, and
`vlm-new-table2latex-train` those of one task of `vlm-new-train`.
"""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np

from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.vqa.canvas import gif_uri, png_uri
from mmrl_shapeworld.vqa.heldout_tasks import NEW_TASKS
from mmrl_shapeworld.vqa.questions import QUESTIONS, Question

SPLITS = {"vlm-train": (21, 600), "vlm-development": (23, 256), "vlm-validation": (31, 512)}
"""Seed of each split, and questions of each task; with these seeds no picture of one occurs in another. Settings are
chosen on `vlm-development`; `vlm-validation` is for results."""
NEW_SEED, NEW_SPLITS = 41, {"vlm-new-train": 1200, "vlm-new-development": 256, "vlm-new-validation": 256}
"""The seed of the four new tasks, and the size of each split."""
NAMES = (*SPLITS, *NEW_SPLITS)

REWARDS = {
    "grounding": RewardChoice("box_iou"),
    "detection": RewardChoice("detection_f1", args={"threshold": 0.6}),
    "counting": RewardChoice("count_exact"),
    "ocr": RewardChoice("ocr_ned"),
    "chart": RewardChoice("chart_relaxed"),
    "puzzle": RewardChoice("multiple_choice"),
    "video-qa": RewardChoice("multiple_choice"),
    "math": RewardChoice("numeric"),
    "gui": RewardChoice("gui_action"),
    "science": RewardChoice("multiple_choice"),
    "temporal-grounding": RewardChoice("temporal_iou"),
    "table2latex": RewardChoice("teds"),
}
"""The one reward of each task; all lie in [0, 1]."""


def questions(split: str) -> dict[str, list[Question]]:
    """Return the questions of a split by task, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split in NEW_SPLITS:
        return {task: list(_new_questions(task)[split]) for task in NEW_TASKS}
    if split not in SPLITS:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    seed, size = SPLITS[split]
    drawn = {}
    for number, (task, make) in enumerate(QUESTIONS.items()):
        rng = np.random.default_rng((seed, number))
        drawn[task] = [make(rng) for _ in range(size)]
    return drawn


@cache
def _new_questions(task: str) -> dict[str, tuple[Question, ...]]:
    """Return every split of one new task. There are few balances and tables, so duplicates are dropped."""
    rng = np.random.default_rng((NEW_SEED, list(NEW_TASKS).index(task)))
    drawn: dict[bytes, Question] = {}
    total = sum(NEW_SPLITS.values())
    while len(drawn) < total:
        question = NEW_TASKS[task](rng)
        drawn.setdefault(b"".join(frame.tobytes() for frame in question.frames), question)
    rows = iter(drawn.values())
    return {split: tuple(islice(rows, size)) for split, size in NEW_SPLITS.items()}


def tasks_of(split: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the whole split, and the tasks of it that a split's name names; None if it is not the name of a split."""
    if split in NAMES:
        return split, tuple(NEW_TASKS if split in NEW_SPLITS else QUESTIONS)
    start = "vlm-new-" if split.startswith("vlm-new-") else "vlm-"
    names, _, part = split.removeprefix(start).rpartition("-")
    tasks, whole = tuple(names.split("+")), f"{start}{part}"
    known = all(task in (NEW_TASKS if whole in NEW_SPLITS else QUESTIONS) for task in tasks)
    return (
        (whole, tasks)
        if split.startswith(start) and whole in NAMES and known and len(set(tasks)) == len(tasks)
        else None
    )


def samples(split: str) -> list[Sample]:
    """Return a split as data, pictures as data URIs.

    Training data has demonstrations: the right answers, and those of the careless annotator for the new tasks.

    Raises:
        KeyError: there is no such split.
    """
    found = tasks_of(split)
    if found is None:
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {', '.join(NAMES)}")
    whole, tasks = found
    return [sample for sample in _samples(whole) if sample.task in tasks]


@cache  # drawing the pictures takes a second or two, and several runs in one process ask for them
def _samples(split: str) -> tuple[Sample, ...]:
    rows = zip(*([(task, each) for each in found] for task, found in questions(split).items()), strict=True)
    return tuple(
        as_sample(task, question, f"{split}-{number:04d}-{task}", demonstrated=split.endswith("-train"))
        for number, row in enumerate(rows)
        for task, question in row
    )


def as_sample(task: str, question: Question, id: str, demonstrated: bool = False) -> Sample:
    """Return a question as data, with an answer as its demonstration if `demonstrated`."""
    return Sample(
        id=id,
        prompt=question.prompt,
        images=(png_uri(question.frames[0]),) if len(question.frames) == 1 else (),
        videos=(gif_uri(question.frames),) if len(question.frames) > 1 else (),
        answer=question.answer,
        task=task,
        source=task,
        demonstration=(question.annotated if task in NEW_TASKS else question.right) if demonstrated else None,
        rewards=(REWARDS[task],),
        metadata=question.metadata,
    )
