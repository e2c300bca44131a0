"""What a model read out of an answer: boxes drawn as outlines, and the answer as its reward takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.parsing.boxes import LabelledBox, Space, convert_box, parse_labelled_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text

SHOWN = 384  # pixels that the longer side of a small picture is brought to
THICK = 3  # pixels of an outline

Mask = NDArray[np.float32]


def parsed(sample: Sample, answer: str) -> tuple[str, list[LabelledBox]]:
    """The final answer (or why it is malformed) and its boxes in shares of the picture; none where none are due.

    `sample` is as the policy was asked, so that it says what coordinates count.
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


def right_boxes(sample: Sample) -> list[LabelledBox]:
    """The true boxes in shares of the picture; none where the sample has none."""
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


def answered_space(sample: Sample) -> Space | None:
    """What coordinates in answers count; None where answers are no boxes."""
    boxes = ("grounding", "detection")
    if sample.task not in boxes and not any(each.name.startswith(("box_", "detection_")) for each in sample.rewards):
        return None
    told = [each.args["space"] for each in sample.rewards if "space" in each.args]
    return next(iter(told), None) or sample.metadata.get("space")


def shown(image: Image.Image) -> Image.Image:
    """The picture, a small one enlarged with square pixels, so that outlines are thin beside it."""
    factor = SHOWN // max(image.size)
    if factor <= 1:
        return image.convert("RGB")
    return image.convert("RGB").resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def outlines(found: list[LabelledBox], size: tuple[int, int], name: str) -> list[tuple[Any, str]]:
    """[height, width] masks that are 1 on the outline of each box, with labels that differ."""
    masks = []
    for number, each in enumerate(found, start=1):
        label = f"{name}: {each.label}" if each.label else name
        masks.append((tree_spec(each.box, size), f"{label} ({number})" if len(found) > 1 else label))
    return masks


def tree_spec(box: Any, size: tuple[int, int]) -> Mask:
    """[height, width]: 1 within `THICK` pixels of the inner edge of a box in shares of the picture."""
    width, height = size
    mask = np.zeros((height, width), np.float32)
    left, top = (round(max(0.0, box[i]) * (width, height)[i]) for i in (0, 1))
    right, bottom = (round(min(1.0, box[i]) * (width, height)[i - 2]) for i in (2, 3))
    mask[top:bottom, left:right] = 1
    mask[top + THICK : bottom - THICK, left + THICK : right - THICK] = 0
    return mask


def _size(sample: Sample) -> tuple[float, float] | None:
    size = sample.metadata.get("size")
    return (float(size[0]), float(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None
