"""Two tasks of one generator that edits: to draw a caption on a blank picture, and to edit a picture.

`shapeworld:draw-first` and `edit-first` are for training, `draw-or-edit` has both by turns; `draw-or-edit-development`
and `-validation` are for settings and results. Samples of training have a right answer as `demonstration`. Each
sample names the reward of its task, and the task is its source.
"""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from PIL import Image

from mmrl.data.media.uris import data_uri
from mmrl.data.sample import RewardChoice, Sample
from mmrl_shapeworld.captions import HELDOUT_KINDS, KINDS, sample_caption, sample_scene
from mmrl_shapeworld.editing import PIXELS, sample_edit
from mmrl_shapeworld.scenes import Scene, draw

SPLITS = {
    "draw-or-edit": (71, 1024),
    "draw-or-edit-development": (72, 192),
    "draw-or-edit-validation": (73, 256),
}
"""Seed and size of each split of both tasks; those of one task have half of the samples of training."""
OF_ONE_TASK = {"draw-first": "draw", "edit-first": "edit"}
NAMES = (*SPLITS, *OF_ONE_TASK)
_SEEN = tuple(kind for kind in KINDS if kind not in HELDOUT_KINDS)


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data; the picture to begin with is the condition `image`.

    Raises:
        KeyError: there is no such split.
    """
    if split in OF_ONE_TASK:
        return [sample for sample in samples("draw-or-edit") if sample.source == OF_ONE_TASK[split]]
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    make = (_drawn, _edited)
    return [make[number % 2](f"{split}-{number:04d}", rng, split == "draw-or-edit") for number in range(size)]


def _drawn(id: str, rng: np.random.Generator, taught: bool) -> Sample:
    caption = sample_caption(rng, _SEEN)
    return Sample(
        id=id,
        prompt=str(caption),
        conditions={"image": _blank()},
        answer=caption.as_dict(),
        task="text-to-image",
        source="draw",
        demonstration={"image": _png(draw(sample_scene(caption, rng), PIXELS))} if taught else None,
        rewards=(RewardChoice("shapeworld"),),
    )


def _edited(id: str, rng: np.random.Generator, taught: bool) -> Sample:
    edit = sample_edit(rng, _SEEN)
    return Sample(
        id=id,
        prompt=str(edit),
        conditions={"image": _png(draw(edit.source, PIXELS))},
        answer=edit.as_dict(),
        task="edit",
        source="edit",
        demonstration={"image": _png(draw(edit.target, PIXELS))} if taught else None,
        rewards=(RewardChoice("shapeworld_edit"),),
    )


@cache
def _blank() -> str:
    """Return the picture of no things."""
    return _png(draw(Scene(()), PIXELS))


def _png(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return data_uri(buffer.getvalue(), "image/png")
