"""Data sets of captions: training, validation, and compositions that training never shows.

`samples` also returns the data sets of questions about pictures (`mmrl_shapeworld.vqa.question_splits`), those of the
worlds (`mmrl_shapeworld.worlds.world_splits`, and `button_splits` and `zoom_splits` for several turns), those of edits,
holes and motions (`mmrl_shapeworld.task_splits`) and those of calculations
(`mmrl_shapeworld.reasoning.calculation_splits`), by their names. It is an entry point of `mmrl.datasets`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld import task_splits
from mmrl_shapeworld.captions import HELDOUT_KINDS, KINDS, Caption, sample_caption
from mmrl_shapeworld.reasoning import calculation_splits
from mmrl_shapeworld.vqa import question_splits
from mmrl_shapeworld.worlds import button_splits, world_splits, zoom_splits

SEEN_KINDS = tuple(kind for kind in KINDS if kind not in HELDOUT_KINDS)
SPLITS = {"train": (11, 4096), "development": (12, 768), "validation": (14, 768), "heldout": (13, 384)}
"""Seed and size of each split. Settings are chosen on `development`; `validation` and `heldout` are for results."""


def captions(split: str) -> list[Caption]:
    """Return the captions of a split, always the same. `heldout` captions name at least one held-out kind.

    Raises:
        KeyError: there is no such split.
    """
    if split not in SPLITS:
        worlds = (*world_splits.split_names(), *button_splits.NAMES, *zoom_splits.NAMES)
        others = (question_splits.NAMES, task_splits.SPLITS, worlds, calculation_splits.NAMES)
        known = ", ".join([*SPLITS, *(name for names in others for name in names)])
        raise KeyError(f"ShapeWorld has no split {split!r}: choose one of {known}")
    return list(_drawn(split))


@cache
def _drawn(split: str) -> tuple[Caption, ...]:
    """Return the captions; they are sampled once in a process, since the training split takes most of a second."""
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    kinds = KINDS if split == "heldout" else SEEN_KINDS
    chosen: list[Caption] = []
    while len(chosen) < size:
        caption = sample_caption(rng, kinds)
        if split != "heldout" or contains_heldout_kind(caption):
            chosen.append(caption)
    return tuple(chosen)


def contains_heldout_kind(caption: Caption) -> bool:
    """Return whether a caption names a composition that training never shows."""
    return any((clause.colour, clause.shape) in HELDOUT_KINDS for clause in caption.clauses)


def samples(split: str) -> list[Sample]:
    """Return a split as data: the prompt, the parsed caption as `answer`, and the form of caption as `source`.

    Raises:
        KeyError: there is no such split of any kind.
    """
    if question_splits.tasks_of(split):
        return question_splits.samples(split)
    if world_splits.parts_of(split):
        return world_splits.samples(split)
    if split in button_splits.NAMES:
        return button_splits.samples(split)
    if split in zoom_splits.NAMES:
        return zoom_splits.samples(split)
    if split in task_splits.SPLITS:
        return task_splits.samples(split)
    if split in calculation_splits.NAMES:
        return calculation_splits.samples(split)
    return [
        Sample(
            id=f"{split}-{number:05d}",
            prompt=str(caption),
            answer=caption.as_dict(),
            task="text-to-image",
            source=f"{caption.form}-heldout" if split == "heldout" else caption.form,
            metadata={"tags": _tags(caption)},
        )
        for number, caption in enumerate(captions(split))
    ]


def _tags(caption: Caption) -> list[str]:
    """Return what `mmrl evaluate` groups a caption under: colours, shapes, sizes, counts above 1, the relation."""
    tags: list[str] = []
    for clause in caption.clauses:
        tags += [f"colour: {clause.colour}", f"shape: {clause.shape}"]
        tags += [f"size: {clause.size}"] if clause.size else []
        tags += [f"count: {clause.count}"] if clause.count > 1 else []
    tags += [f"relation: {caption.relation}"] if caption.relation else []
    return list(dict.fromkeys(tags))
