"""Tasks by name: what is asked, how the answer is written, and which reward reads it.

    {"task": "grounding", "prompt": "the cat on the left", "images": ["a.jpg"], "answer": [12, 20, 60, 88],
     "metadata": {"space": "pixel"}}

A line like this needs nothing more. Its task adds to the prompt how the answer is to be written, in the coordinates
that the model's family is used to, and names the rewards. A sample with rewards of its own is complete as it stands,
and left alone; so is one without a task.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError
from mmrl.rewards.parsing.boxes import Space
from mmrl.understanding.tasks.answer_instructions import (
    Kind,
    Thinking,
    answer_form,
    asked_text,
    instruction,
    listed,
    options_of,
    rewards_for,
    with_instruction,
)
from mmrl.understanding.tasks.coordinates import CoordinateFormat, coordinate_format, placed

if TYPE_CHECKING:
    from mmrl.data.media.reader import MediaReader


@dataclass(frozen=True)
class Task:
    """What `task: <name>` in a line of data means."""

    name: str
    summary: str
    kind: Kind
    shows: Literal["picture", "video", "either", "nothing"] = "picture"
    """What a sample must come with."""
    choices: bool = False
    """Whether a sample may list options, of which the answer is then one."""
    lists: Kind | None = None
    """The way to answer where the true answer is a list."""

    def kind_of(self, sample: Sample) -> Kind:
        """The way in which this sample is answered."""
        if self.choices and options_of(sample):
            return CHOICE
        return self.lists if self.lists and isinstance(sample.answer, list | tuple) else self.kind


CHOICE = Kind("the letter of the right option", RewardChoice("multiple_choice"))
BOX = Kind('its bounding box as JSON: [{"bbox_2d": [x1, y1, x2, y2]}]', RewardChoice("box_iou"), places=True)
BOXES = Kind(
    'a bounding box for each of them as JSON: [{"bbox_2d": [x1, y1, x2, y2], "label": "..."}, ...], or [] if there is '
    "none",
    RewardChoice("detection_f1"),
    places=True,
)
ACTION = Kind(
    'one action as JSON, with the place where it is done: {"action": "click", "coordinate": [x, y]}, or with what is '
    'typed or the direction that is scrolled in: {"action": "type", "text": "..."}',
    RewardChoice("gui_action"),
    places=True,
)
SPAN = Kind("its start and end in seconds as JSON: [start, end]", RewardChoice("temporal_iou"))
RESULT = Kind("the result", RewardChoice("maths"), boxed=True)
WORD = Kind("a word, a short phrase or a number", RewardChoice("chart_relaxed", args={"tolerance": 0.0}))
VALUE = Kind("the value or the label", RewardChoice("chart_relaxed"))
VALUES = Kind("a JSON list of the values or labels, in order", RewardChoice("chart_relaxed"))

_ALL = (
    Task("grounding", "Find the one thing that is described.", BOX),
    Task("detection", "Find all things of some kinds.", BOXES),
    Task("counting", "Count things.", Kind("the number, in digits", RewardChoice("count_exact")), shows="either"),
    Task("ocr", "Read text.", Kind("the text, exactly as it is written", RewardChoice("ocr_ned")), shows="either"),
    Task("chart", "Answer questions about charts.", VALUE, choices=True, lists=VALUES),
    Task("math", "Solve problems of mathematics.", RESULT, shows="nothing", choices=True),
    Task("puzzle", "Solve puzzles.", RESULT, shows="nothing", choices=True),
    Task("science", "Answer questions of science.", RESULT, shows="nothing", choices=True),
    Task("video-qa", "Answer questions about videos.", WORD, shows="video", choices=True),
    Task("temporal-grounding", "Find when something happens in a video.", SPAN, shows="video"),
    Task("gui", "Take the next action on a screen.", ACTION),
    Task("table2latex", "Write a table in LaTeX.", Kind("the table, as a tabular of LaTeX", RewardChoice("teds"))),
)
TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}


class MultimodalPolicy(Protocol):
    """What `apply_tasks` asks of a policy."""

    @property
    def vlm(self) -> Any:
        """Its model's family and processor."""
        ...

    @property
    def reader(self) -> MediaReader:
        """Through which it reads media."""
        ...

    def check_sample(self, sample: Sample) -> None:
        """Raise where the model cannot take a sample's media."""
        ...


def apply_tasks(
    policy: MultimodalPolicy,
    samples: Sequence[Sample],
    thinking: Thinking = "off",
    space: Space | None = None,
    task: str | None = None,
) -> list[Sample]:
    """The samples as the policy is to be asked: completed by their tasks, in its family's coordinates or in `space`.

    `task` is that of samples which name none and have no rewards of their own.

    Raises:
        DataError: a sample's task is unknown or does not fit it, or its media are none that the model takes.
    """
    family = policy.vlm.family
    answers = coordinate_format(family.name, family.space, policy.vlm.processor, policy.reader.budget.image, space)
    fitted = []
    for sample in samples:
        policy.check_sample(sample)
        fitted.append(apply_task(with_task(sample, task), answers, thinking))
    return fitted


def apply_task(sample: Sample, space: CoordinateFormat, thinking: Thinking = "off") -> Sample:
    """The sample with what its task adds: instruction, rewards, the form of the answer, and what coordinates count.

    Raises:
        DataError: the task is unknown, or misses something that the sample does not hold.
    """
    if sample.task is None or sample.rewards:
        return sample
    task = find_task(sample)
    _refuse_without_media(sample, task)
    kind = task.kind_of(sample)
    metadata = {"answer_form": answer_form(kind, thinking), **sample.metadata}
    args, coordinates = dict(kind.reward.args), ""
    if kind.places:
        answer, known, shown = placed(sample, space)
        sample = replace(sample, answer=answer)
        metadata |= known
        args["space"] = space.space
        coordinates = space.sentence(shown)
    rewards = rewards_for(kind, thinking, args)
    sample = replace(sample, rewards=rewards, metadata=metadata)
    if space.location_tokens and kind in (BOX, BOXES):
        return replace(sample, prompt=f"detect {sample.prompt}")
    said = instruction(kind, thinking, coordinates)
    options = listed(sample, asked_text(sample)) if kind is CHOICE else ""
    return with_instruction(sample, f"{options}\n{said}" if options else said)


def with_task(sample: Sample, task: str | None) -> Sample:
    """The sample with a task, where it has neither one nor rewards of its own."""
    return sample if sample.task or sample.rewards or task is None else replace(sample, task=task)


def find_task(sample: Sample) -> Task:
    """The task that a sample names.

    Raises:
        DataError: there is none of that name.
    """
    name = str(sample.task)
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(TASKS)}; or give it rewards of its own"
    raise DataError(f"sample {sample.id!r}: no task is called {name!r}: {hint}")


def _refuse_without_media(sample: Sample, task: Task) -> None:
    lacking = {
        "picture": not sample.images,
        "video": not sample.videos,
        "either": not sample.images and not sample.videos,
        "nothing": False,
    }
    if lacking[task.shows]:
        due = "a picture or a video" if task.shows == "either" else f"a {task.shows}"
        raise DataError(f"sample {sample.id!r}: the task {task.name} needs {due}, and it comes with none")
