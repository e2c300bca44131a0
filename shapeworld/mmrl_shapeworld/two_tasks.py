"""Two tasks of one generator that edits: to draw a caption on a blank picture, and to edit a picture.

`shapeworld:draw-first` and `edit-first` are for training, `draw-or-edit` has both by turns; `draw-or-edit-development`
and `-validation` are for settings and results. Samples of training have a right answer as `demonstration`. Each
sample names the reward of its task, and the task is its source.

`canvas-first`, `hole-first` and `canvas-or-hole` are the same for a generator that fills masks: captions of one or two
things for a blank picture that is masked up to its margin, and holes in pictures. They have no demonstrations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from PIL import Image

from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.captions import SEEN_KINDS, sample_caption, sample_scene
from mmrl_shapeworld.editing import PIXELS, sample_edit
from mmrl_shapeworld.scenes import Scene, draw, picture_uri
from mmrl_shapeworld.task_splits import hole_sample

SPLITS = {
    "draw-or-edit": (71, 1024),
    "draw-or-edit-development": (72, 192),
    "draw-or-edit-validation": (73, 256),
    "canvas-or-hole": (74, 1024),
    "canvas-or-hole-development": (75, 256),
    "canvas-or-hole-validation": (76, 512),
}
"""Seed and size of each split of both tasks; those of one task have half of the samples of training."""
OF_ONE_TASK = {
    "draw-first": ("draw-or-edit", "draw"),
    "edit-first": ("draw-or-edit", "edit"),
    "canvas-first": ("canvas-or-hole", "draw"),
    "hole-first": ("canvas-or-hole", "edit"),
}
"""The split and the source that a split of one task has."""
MARGIN = 4
"""Pixels at each edge of a blank picture that are not masked, one of its latent."""
NAMES = (*SPLITS, *OF_ONE_TASK)


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data; the picture to begin with is the condition `image`.

    Raises:
        KeyError: there is no such split.
    """
    if split in OF_ONE_TASK:
        both, source = OF_ONE_TASK[split]
        return [sample for sample in samples(both) if sample.source == source]
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    if split.startswith("canvas"):
        return [(_canvas, _hole)[number % 2](f"{split}-{number:04d}", rng) for number in range(size)]
    make = (_drawn, _edited)
    return [make[number % 2](f"{split}-{number:04d}", rng, split == "draw-or-edit") for number in range(size)]


def _drawn(id: str, rng: np.random.Generator, taught: bool) -> Sample:
    caption = sample_caption(rng, SEEN_KINDS)
    return Sample(
        id=id,
        prompt=str(caption),
        conditions={"image": _blank()},
        answer=caption.as_dict(),
        task="text-to-image",
        source="draw",
        demonstration={"image": picture_uri(draw(sample_scene(caption, rng), PIXELS))} if taught else None,
        rewards=(RewardChoice("shapeworld"),),
    )


def _edited(id: str, rng: np.random.Generator, taught: bool) -> Sample:
    edit = sample_edit(rng, SEEN_KINDS)
    return Sample(
        id=id,
        prompt=str(edit),
        conditions={"image": picture_uri(draw(edit.source, PIXELS))},
        answer=edit.as_dict(),
        task="edit",
        source="edit",
        demonstration={"image": picture_uri(draw(edit.target, PIXELS))} if taught else None,
        rewards=(RewardChoice("shapeworld_edit"),),
    )


def _canvas(id: str, rng: np.random.Generator) -> Sample:
    caption = sample_caption(rng, SEEN_KINDS)
    while caption.form not in ("single", "pair"):
        caption = sample_caption(rng, SEEN_KINDS)
    inside = np.zeros((PIXELS, PIXELS), bool)
    inside[MARGIN:-MARGIN, MARGIN:-MARGIN] = True
    return Sample(
        id=id,
        prompt=str(caption),
        conditions={"image": _blank(), "mask_image": picture_uri(Image.fromarray(inside).convert("L"))},
        answer=caption.as_dict(),
        task="text-to-image",
        source="draw",
        rewards=(RewardChoice("shapeworld"),),
    )


def _hole(id: str, rng: np.random.Generator) -> Sample:
    return replace(hole_sample(id, rng), source="edit", rewards=(RewardChoice("shapeworld_inpaint"),))


@cache
def _blank() -> str:
    """Return the picture of no things."""
    return picture_uri(draw(Scene(()), PIXELS))
