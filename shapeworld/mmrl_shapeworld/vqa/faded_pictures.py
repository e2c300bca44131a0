"""The questions of the `vlm` splits about faded pictures, in which every colour is close to the background's.

`shapeworld:faded-train` (3,600), `faded-development` (1,536) and `faded-validation` (3,072) have the questions of
`vlm-train`, `vlm-development` and `vlm-validation` about one picture, the tasks by turns. Questions are as they were:
a pale red circle is a red one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.sample import Sample
from mmrl_shapeworld.scenes import BACKGROUND, picture_uri
from mmrl_shapeworld.vqa.canvas import PALETTE
from mmrl_shapeworld.vqa.question_splits import as_sample, questions

TASKS = ("grounding", "detection", "counting", "ocr", "chart", "puzzle")
"""The tasks of questions about one picture."""
STRENGTH: Final = 0.3
"""The distance of a faded colour from the background, as a share of what it was."""
NAMES = tuple(f"faded-{part}" for part in ("train", "development", "validation"))


def faded(colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return RGB colours [..., 3] near to that of the background."""
    ground = np.array(BACKGROUND, float)
    return np.asarray((ground - STRENGTH * (ground - colours)).round().astype(np.uint8))


@cache  # several runs in one process ask for them
def _samples(split: str) -> tuple[Sample, ...]:
    palette, part = faded(PALETTE), split.removeprefix("faded-")
    drawn = questions(f"vlm-{part}")
    rows = zip(*([(task, each) for each in drawn[task]] for task in TASKS), strict=True)
    found = []
    for number, (task, question) in enumerate(chain.from_iterable(rows)):
        sample = as_sample(task, question, f"{split}-{number:04d}-{task}", demonstrated=part == "train")
        found.append(replace(sample, images=(picture_uri(Image.fromarray(palette[question.frames[0]])),)))
    return tuple(found)


def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have right answers as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of faded pictures: choose one of {', '.join(NAMES)}")
    return list(_samples(split))
