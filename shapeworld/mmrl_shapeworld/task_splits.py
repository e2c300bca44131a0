"""Data sets of the generator's other tasks: edits, holes and motions, for training, development and validation."""

from __future__ import annotations

from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.editing import sample_edit
from mmrl_shapeworld.inpainting import sample_hole
from mmrl_shapeworld.motion import sample_motion
from mmrl_shapeworld.scenes import draw, picture_uri

SPLITS = {
    "edit-train": (41, 1024),
    "edit-development": (42, 256),
    "edit-validation": (43, 384),
    "inpaint-train": (51, 1024),
    "inpaint-development": (52, 256),
    "inpaint-validation": (53, 384),
    "video-train": (61, 2048),
    "video-development": (62, 384),
    "video-validation": (63, 768),
}
"""Seed and size of each split. Settings are chosen on development; validation is for results. No picture of one split
occurs in another; of the prompts there are few."""
PARTS = ("train", "development", "validation")


def samples(split: str) -> list[Sample]:
    """A split as data: the pipeline's pictures as data URIs, and what a right answer shows as `answer`.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))


@cache  # drawing takes a second, and several runs in one process ask for them
def _samples(split: str) -> tuple[Sample, ...]:
    seed, size = SPLITS[split]
    task, _, part = split.partition("-")
    make, rng = {"edit": _edit, "inpaint": hole_sample, "video": _video}[task], np.random.default_rng(seed)
    others = [] if task == "video" else [f"{task}-{each}" for each in PARTS[: PARTS.index(part)]]
    used = {sample.conditions["image"] for other in others for sample in _samples(other)}
    found: list[Sample] = []
    while len(found) < size:
        sample = make(f"{split}-{len(found):05d}", rng)
        if sample.conditions.get("image") not in used:
            found.append(sample)
    return tuple(found)


def _edit(id: str, rng: np.random.Generator) -> Sample:
    edit = sample_edit(rng, SEEN_KINDS)
    return Sample(
        id=id,
        prompt=str(edit),
        conditions={"image": picture_uri(draw(edit.source))},
        answer=edit.as_dict(),
        task="edit",
        source=edit.kind,
    )


def hole_sample(id: str, rng: np.random.Generator) -> Sample:
    """Return a picture with a hole, and what a right answer draws there."""
    hole, _ = sample_hole(rng, SEEN_KINDS)
    return Sample(
        id=id,
        prompt=str(hole),
        conditions=hole.conditions(),
        answer=hole.as_dict(),
        task="inpaint",
        source=hole.shape,
    )


def _video(id: str, rng: np.random.Generator) -> Sample:
    motion = sample_motion(rng, SEEN_KINDS)
    return Sample(id=id, prompt=str(motion), answer=motion.as_dict(), task="text-to-video", source=motion.form)
