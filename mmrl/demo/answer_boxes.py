"""Boxes in answers: parsed as the reward parses them, and drawn as outlines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.evaluation.episodes.action_marks import answered_space
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.parsing.boxes import LabelledBox, convert_box, parse_labelled_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text

SIDE = 384  # pixels to which the longer side of a small picture is enlarged
THICKNESS = 3  # pixels of an outline

Mask = NDArray[np.float32]


def parse_answer(sample: Sample, answer: str) -> tuple[str, list[LabelledBox]]:
    """Return the final answer, or the reason why it is malformed, and its boxes in shares of the picture.

    `sample` is as the policy received it, with the coordinate format of its answers. A task without boxes has none.
    """
    try:
        text = answer_text(answer, sample.metadata.get("answer_form", "auto"))
        space = answered_space(sample)
        if space is None:
            return text, []
        size = _size(sample)
        found = parse_labelled_boxes(text, space, size)
        return text, [LabelledBox(convert_box(each.box, space, "norm_1", size), each.label) for each in found]
    except (InvalidAnswer, ScoringFailed, RewardError) as err:
        return f"malformed: {err}", []


def reference_boxes(sample: Sample) -> list[LabelledBox]:
    """Return the true boxes in shares of the picture; empty if the sample has none."""
    space = answered_space(sample)
    if space is None or sample.answer is None:
        return []
    try:
        truth = true_boxes({"answer": sample.answer, **sample.metadata}, space)
        return [
            LabelledBox(convert_box(b.box, truth.reference_space, "norm_1", truth.size), b.label) for b in truth.boxes
        ]
    except (ScoringFailed, RewardError):
        return []


def enlarge(image: Image.Image) -> Image.Image:
    """Return the picture; a small one enlarged with square pixels, so that outlines are thin beside it."""
    factor = SIDE // max(image.size)
    if factor <= 1:
        return image.convert("RGB")
    return image.convert("RGB").resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def box_outlines(found: list[LabelledBox], size: tuple[int, int], name: str) -> list[tuple[Any, str]]:
    """Return [height, width] masks that are 1 on the outline of each box, with distinct labels."""
    masks = []
    for number, each in enumerate(found, start=1):
        label = f"{name}: {each.label}" if each.label else name
        masks.append((outline_mask(each.box, size), f"{label} ({number})" if len(found) > 1 else label))
    return masks


def outline_mask(box: Any, size: tuple[int, int]) -> Mask:
    """Return [height, width]: 1 within `THICKNESS` pixels of the inner edge of a box in shares of the picture."""
    width, height = size
    mask = np.zeros((height, width), np.float32)
    left, top = (round(max(0.0, box[i]) * (width, height)[i]) for i in (0, 1))
    right, bottom = (round(min(1.0, box[i]) * (width, height)[i - 2]) for i in (2, 3))
    mask[top:bottom, left:right] = 1
    mask[top + THICKNESS : bottom - THICKNESS, left + THICKNESS : right - THICKNESS] = 0
    return mask


def _size(sample: Sample) -> tuple[float, float] | None:
    size = sample.metadata.get("size")
    return (float(size[0]), float(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None
