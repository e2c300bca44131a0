"""Tasks by name: the instruction, the answer format and the reward that a sample of a task gets.

    {"task": "grounding", "prompt": "the cat on the left", "images": ["a.jpg"], "answer": [12, 20, 60, 88],
     "metadata": {"space": "pixel"}}

A line like this is complete. Its task appends the answer format to the prompt, in the coordinate space of the model's
family, and sets the rewards. Samples with rewards, and samples without a task, are left unchanged.

A task is one `Task` object: here, in another package (an entry point of the group `mmrl.tasks`), or in a file
(`answers.task=my_tasks.py:HANDWRITING`). A line of data may name built-in and installed tasks only: reading data never
runs a file that the data names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from mmrl.components import Registry, is_file_reference
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError
from mmrl.rewards.parsing.boxes import Space
from mmrl.understanding.tasks.answer_instructions import (
    AnswerSpec,
    Thinking,
    answer_format,
    instruction,
    option_list,
    options_of,
    rewards_for,
    with_instruction,
)
from mmrl.understanding.tasks.coordinates import CoordinateFormat, convert_coordinates


@dataclass(frozen=True)
class Task:
    """A task of a vision-language model, which `task: <name>` in a line of data refers to."""

    name: str
    summary: str
    """The description of the task: a sentence in the imperative."""
    answer: AnswerSpec
    """The answer format and its reward."""
    media: Literal["image", "video", "either", "none"] = "image"
    """The media that a sample must have; `either`: an image or a video, `none`: may have none."""
    options: bool = False
    """True if a sample may list options, one of which is then the answer (`CHOICE`)."""
    list_answer: AnswerSpec | None = None
    """The answer format for samples whose reference answer is a list; None: `answer`."""
    recipe: str | None = None
    """The recipe that `mmrl train <task>` starts from, by name or path; None: the shipped one of the task's name."""

    def answer_of(self, sample: Sample) -> AnswerSpec:
        """Return the answer format of a sample of this task."""
        if self.options and options_of(sample):
            return CHOICE
        return self.list_answer if self.list_answer and isinstance(sample.answer, list | tuple) else self.answer


CHOICE = AnswerSpec("the letter of the right option", RewardChoice("multiple_choice"))
BOX = AnswerSpec(
    'its bounding box as JSON: [{"bbox_2d": [x1, y1, x2, y2]}]', RewardChoice("box_iou"), has_coordinates=True
)
BOXES = AnswerSpec(
    'a bounding box for each of them as JSON: [{"bbox_2d": [x1, y1, x2, y2], "label": "..."}, ...], or [] if there is '
    "none",
    RewardChoice("detection_f1"),
    has_coordinates=True,
)
ACTION = AnswerSpec(
    'one action as JSON, with the place where it is done: {"action": "click", "coordinate": [x, y]}, or with what is '
    'typed or the direction that is scrolled in: {"action": "type", "text": "..."}',
    RewardChoice("gui_action"),
    has_coordinates=True,
)
COUNT = AnswerSpec("the number, in digits", RewardChoice("count_exact"))
TEXT = AnswerSpec("the text, exactly as it is written", RewardChoice("ocr_ned"))
SPAN = AnswerSpec("its start and end in seconds as JSON: [start, end]", RewardChoice("temporal_iou"))
RESULT = AnswerSpec("the result", RewardChoice("maths"), boxed=True)
WORD = AnswerSpec("a word, a short phrase or a number", RewardChoice("chart_relaxed", args={"tolerance": 0.0}))
VALUE = AnswerSpec("the value or the label", RewardChoice("chart_relaxed"))
VALUES = AnswerSpec("a JSON list of the values or labels, in order", RewardChoice("chart_relaxed"))
TABLE = AnswerSpec("the table, as a tabular of LaTeX", RewardChoice("teds"))
VERDICT = AnswerSpec("the letter of the better answer, A or B", RewardChoice("verdict"))

GROUNDING = Task("grounding", "Find the one thing that is described.", BOX)
DETECTION = Task("detection", "Find all things of some kinds.", BOXES)
COUNTING = Task("counting", "Count things.", COUNT, media="either")
OCR = Task("ocr", "Read text.", TEXT, media="either")
CHART = Task("chart", "Answer questions about charts.", VALUE, options=True, list_answer=VALUES)
MATH = Task("math", "Solve problems of mathematics.", RESULT, media="none", options=True)
PUZZLE = Task("puzzle", "Solve puzzles.", RESULT, media="none", options=True)
SCIENCE = Task("science", "Answer questions of science.", RESULT, media="none", options=True)
VIDEO_QA = Task("video-qa", "Answer questions about videos.", WORD, media="video", options=True)
TEMPORAL_GROUNDING = Task("temporal-grounding", "Find when something happens in a video.", SPAN, media="video")
GUI = Task("gui", "Take the next action on a screen.", ACTION)
TABLE_TO_LATEX = Task("table2latex", "Write a table in LaTeX.", TABLE)
JUDGING = Task("judging", "Judge which of two answers is better.", VERDICT, media="none")

_CONSTANTS = {constant: task for constant, task in list(globals().items()) if isinstance(task, Task)}
BUILT_IN_TASKS = {task.name: task for task in _CONSTANTS.values()}
TASKS: Registry[Task] = Registry(
    "mmrl.tasks",
    "task",
    {task.name: f"{__name__}:{constant}" for constant, task in _CONSTANTS.items()},
    base=f"{__name__}:Task",
    error=DataError,
)


class PromptedPolicy(Protocol):
    """The part of a policy that tasks need."""

    def coordinates(self, requested: Space | None) -> CoordinateFormat:
        """Return the format of coordinates in its answers; `requested` is a space from the configuration."""

    def check_sample(self, sample: Sample) -> None:
        """Raise DataError if it does not take the media of a sample."""


def apply_tasks(
    policy: PromptedPolicy,
    samples: Sequence[Sample],
    thinking: Thinking = "off",
    space: Space | None = None,
    task: str | None = None,
) -> list[Sample]:
    """Return the samples completed by their tasks, for one policy.

    Args:
        policy: the policy, which determines the coordinates.
        samples: the samples of a data set.
        thinking: the format of the reasoning before the answer.
        space: the coordinate space of answers; None: that of the model's family.
        task: the task of samples that have neither a task nor rewards; also `path/to/file.py:Name`.

    Raises:
        DataError: a sample's task is unknown or does not fit it, or the model does not take its media.
    """
    coordinates = policy.coordinates(space)
    completed = []
    for sample in samples:
        policy.check_sample(sample)
        completed.append(apply_task(with_task(sample, task), coordinates, thinking, task))
    return completed


def apply_task(
    sample: Sample, coordinates: CoordinateFormat, thinking: Thinking = "off", default_task: str | None = None
) -> Sample:
    """Return the sample with the instruction, rewards, answer format and coordinate space of its task.

    `default_task` is the task that the user named, the only one that may be `path/to/file.py:Name`.

    Raises:
        DataError: the task is unknown, or the sample lacks something that the task needs.
    """
    if sample.task is None or sample.rewards:
        return sample
    task = find_task(sample, default_task)
    _check_media(sample, task)
    answer = task.answer_of(sample)
    metadata = {"answer_form": answer_format(answer, thinking), **sample.metadata}
    args, sentence = dict(answer.reward.args), ""
    if answer.has_coordinates:
        reference, known, size = convert_coordinates(sample, coordinates)
        sample = replace(sample, answer=reference)
        metadata |= known
        args["space"] = coordinates.space
        sentence = coordinates.sentence(size)
    sample = replace(sample, rewards=rewards_for(answer, thinking, args), metadata=metadata)
    if coordinates.location_tokens and answer in (BOX, BOXES):
        return replace(sample, prompt=f"detect {sample.prompt}")
    words = instruction(answer, thinking, sentence)
    options = option_list(sample) if answer is CHOICE else ""
    return with_instruction(sample, f"{options}\n{words}" if options else words)


def with_task(sample: Sample, task: str | None) -> Sample:
    """Return the sample with a task, if it has neither a task nor rewards."""
    return sample if sample.task or sample.rewards or task is None else replace(sample, task=task)


def find_task(sample: Sample, default_task: str | None = None) -> Task:
    """Return the task that a sample names.

    Raises:
        DataError: there is no task of that name, or it is in a file that only the data name.
    """
    name = str(sample.task)
    if is_file_reference(name) and name != default_task:
        raise DataError(
            f"sample {sample.id!r}: its line names the code {name}, and data may not: set it with answers.task, "
            "or --task of `mmrl data check`"
        )
    try:
        return TASKS.load(name)
    except DataError as err:
        raise DataError(f"sample {sample.id!r}: {err} A sample with rewards needs no task.") from None


def _check_media(sample: Sample, task: Task) -> None:
    lacking = {
        "image": not sample.images,
        "video": not sample.videos,
        "either": not sample.images and not sample.videos,
        "none": False,
    }
    if lacking[task.media]:
        needed = {"image": "an image", "video": "a video", "either": "an image or a video"}[task.media]
        hint = "; the key of its pictures is images, a list" if "image" in sample.conditions else ""
        raise DataError(f"sample {sample.id!r}: the task {task.name} needs {needed}, and it comes with none{hint}")
