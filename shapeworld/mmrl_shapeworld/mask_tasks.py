"""Two tasks with a mask for one generator: to draw a named thing into a hole (fill), and to leave it empty (removal).

The prompt of a removal names the thing that stood in the hole. What is right in one task is wrong in the other: the
same filled hole is a success for "a red circle" and a failure for "remove a red circle". Rules judge a picture by the
criteria of its task; they are for the labels of a judge's pairs and for results.

`shapeworld:masks-train`, `masks-development` and `masks-validation` have both tasks by turns, and so has
`masks-validation-more`, for studies that have decided on validation before. A sample names its `task`, and in its
metadata the `subject`, which is the prompt without its verb, and the criteria of the task (`criterion`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from mmrl.data.sample import Sample
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.captions import SEEN_KINDS, Kind
from mmrl_shapeworld.checker import SMALLEST, ideal_shape
from mmrl_shapeworld.inpainting import Hole, judge_hole, sample_hole
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene
from mmrl_shapeworld.similarity import labels

TaskName = Literal["fill", "removal"]
TASK_NAMES: tuple[TaskName, ...] = ("fill", "removal")
CRITERIA: Mapping[TaskName, tuple[str, ...]] = {"fill": ("alignment", "structure"), "removal": ("residue",)}
"""The criteria by which pictures are judged in each task."""
SPLITS = {
    "masks-train": (81, 1024),
    "masks-development": (82, 256),
    "masks-validation": (83, 512),
    "masks-validation-more": (84, 256),
}
"""Seed and size of each split; settings are chosen on development, validation is for results."""
NAMES = tuple(SPLITS)
FILLED, EMPTIED = 0.5, 0.03
"""A fill is done from this IoU on, and a removal up to this residue."""


@dataclass(frozen=True)
class MaskTask:
    """A hole and a task for it. The colour and shape of a removal's hole are those of the thing that goes."""

    hole: Hole
    name: TaskName

    def __str__(self) -> str:
        return str(self.hole) if self.name == "fill" else f"remove {self.hole}"

    @property
    def source(self) -> Scene:
        """The scene before."""
        return self.hole.source


@dataclass(frozen=True)
class MaskVerdict:
    """The scores of a picture that was drawn for a task with a mask."""

    alignment: float  # [0, 1]: how far the thing in the hole is the named one, by colour and shape
    structure: float  # [0, 1]: IoU of all that is in the hole with the shape that fits it best
    fill_iou: float  # [0, 1]: IoU of all that is in the hole with an ideal thing of the named colour and shape
    residue: float  # [0, 1]: the share of the hole that is not background
    kept: float  # [0, 1]: how much of the rest still stands

    def by(self, criterion: str) -> float:
        """Return how good the picture is by a criterion of `CRITERIA`; higher is better."""
        return {"alignment": self.alignment, "structure": self.structure, "residue": 1 - self.residue}[criterion]

    def score(self, task: TaskName) -> float:
        """Return how well the picture does what a task asks for, in [0, 1]."""
        return self.fill_iou if task == "fill" else 1 - self.residue

    def done(self, task: TaskName) -> bool:
        """Return whether a task is done: a hole is filled with the named thing, or it is as good as empty."""
        return self.fill_iou >= FILLED if task == "fill" else self.residue <= EMPTIED


def sample_mask_task(
    rng: np.random.Generator, name: TaskName, kinds: tuple[Kind, ...] = SEEN_KINDS
) -> tuple[MaskTask, Scene]:
    """A task, and a scene that solves it."""
    hole, filled = sample_hole(rng, kinds)
    if name == "fill":
        return MaskTask(hole, name), filled
    thing = hole.source.things[0]
    return MaskTask(replace(hole, colour=thing.colour, shape=thing.shape), name), Scene(hole.source.things[1:])


def judge_mask(picture: Image.Image, hole: Hole) -> MaskVerdict:
    """Judge what stands in a hole by the criteria of both tasks."""
    inside = hole.mask(picture.size[0])
    seen = np.where(inside, labels(picture), 0)
    occupied = seen != 0
    verdict = judge_hole(picture, hole)
    return MaskVerdict(
        alignment=verdict.filled,
        structure=max(_thing_iou(occupied, occupied, shape) for shape in SHAPES),
        fill_iou=_thing_iou(seen == 1 + list(COLOURS).index(hole.colour), occupied, hole.shape),
        residue=float(occupied.sum() / inside.sum()),
        kept=verdict.kept,
    )


def _thing_iou(right: NDArray[np.bool_], occupied: NDArray[np.bool_], shape: str) -> float:
    """Return the IoU of all that is drawn with an ideal shape in the box of the largest right component, [H, W] each.

    Drawn pixels that are not right count as outside of the shape; 0 if the component is too small for a thing.
    """
    components, count = ndimage.label(right)
    if not count:
        return 0.0
    sizes = np.bincount(components.ravel())[1:]
    if sizes.max() < SMALLEST * right.size:
        return 0.0
    rows, columns = ndimage.find_objects(components)[int(sizes.argmax())]
    ideal = np.zeros_like(right)
    ideal[rows, columns] = ideal_shape(shape, rows.stop - rows.start, columns.stop - columns.start)
    return float((right & ideal).sum() / (occupied | ideal).sum())


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data; no picture of it occurs in the splits before it.

    Raises:
        KeyError: there is no such split.
    """
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    used = {sample.conditions["image"] for other in NAMES[: NAMES.index(split)] for sample in samples(other)}
    found: list[Sample] = []
    while len(found) < size:
        sample = _sample(f"{split}-{len(found):04d}", rng, TASK_NAMES[len(found) % 2])
        if sample.conditions["image"] not in used:
            found.append(sample)
    return found


def _sample(id: str, rng: np.random.Generator, name: TaskName) -> Sample:
    task, _ = sample_mask_task(rng, name)
    return Sample(
        id=id,
        prompt=str(task),
        conditions=task.hole.conditions(),
        answer=task.hole.as_dict(),
        task=name,
        source=name,
        metadata={"subject": str(task.hole), "criterion": list(CRITERIA[name])},
    )


class MaskCheck(Reward):
    """Score a picture by the rules of its task: the IoU of a fill, and 1 less the residue of a removal.

    In [0, 1]. Further scores are those of `MaskVerdict`, in both tasks, and `done`, 1 if the sample's task is.
    """

    name = "shapeworld_masks"
    source = "docs/tasks/inpaint.md"
    needs = ("image", "references.answer", "metadata.task")
    range = (0.0, 1.0)
    measures = ("alignment", "structure", "fill_iou", "residue", "kept", "done")

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one picture."""
        task = item.metadata["task"]
        verdict = judge_mask(answer_image(item.image), Hole.from_dict(item.references["answer"]))
        scores = {**asdict(verdict), "done": float(verdict.done(task))}
        return {self.name: verdict.score(task), **{f"{self.name}_{each}": scores[each] for each in self.measures}}
