"""Pictures of one to three things that are smaller than those of `vlm-detection-train`; all of them are to be detected.

The embedded model finds them less exactly: few of its boxes reach an IoU of 0.75, which criteria that tighten in
training (Vision-R1) require. Splits are `little-train`, `-development` and `-validation`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.question_splits import as_sample
from mmrl_shapeworld.vqa.questions import Question, detection
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.world_splits import checksum

SIDES = (11, 16)
"""The smallest side of a thing in pixels, and one above the largest."""
SIZES = {"train": 600, "development": 256, "validation": 512}
"""Pictures of each split. Settings are chosen on `development`; `validation` is for results."""
NAMES = tuple(f"little-{part}" for part in SIZES)
_SEED = 113


@cache
def _questions(part: str) -> tuple[Question, ...]:
    rng = np.random.default_rng((_SEED, list(SIZES).index(part)))
    return draw_disjoint(part, SIZES[part], lambda _: detection(rng, SIDES), checksum)


def samples(split: str) -> list[Sample]:
    """Return a split as data of the task `detection`.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of little things: choose one of {', '.join(NAMES)}")
    return list(_samples(split))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    part = split.rpartition("-")[2]
    return tuple(
        as_sample("detection", question, f"{split}-{number:04d}", demonstrated=part == "train")
        for number, question in enumerate(_questions(part))
    )
