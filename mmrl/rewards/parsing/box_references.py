"""The true boxes of a sample, and answered boxes brought to the same coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.base import InvalidAnswer, ScoringFailed
from mmrl.rewards.parsing.boxes import BOX_KEYS, SPACES, Box, LabelledBox, Size, Space, boxes_of, to_space


@dataclass(frozen=True)
class TrueBoxes:
    """What is known to be right, and how answers are written."""

    boxes: tuple[LabelledBox, ...]  # in `given`
    given: Space
    space: Space
    """The space of answers."""
    size: Size | None

    @property
    def labelled(self) -> bool:
        """Whether the true boxes have labels."""
        return any(box.label is not None for box in self.boxes)

    def side_by_side(self, answered: Sequence[Box]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Answered [N, 4] and true [M, 4] boxes in one space: in pixels, if the picture's size is known.

        Boxes that are equal as fractions come out equal as floats.
        """
        return self._array(answered, self.space), self._array([box.box for box in self.boxes], self.given)

    def _array(self, boxes: Sequence[Box], space: Space) -> NDArray[np.float64]:
        common: Space = self.given if self.given == self.space else "norm_1"
        values = np.array([to_space(box, space, common, self.size) for box in boxes], np.float64).reshape(-1, 4)
        return values * (self.size * 2) if self.size and common != "pixel" else values


def true_boxes(references: Mapping[str, Any], space: Space | None = None) -> TrueBoxes:
    """The true boxes among a sample's references.

    `answer` is [x1, y1, x2, y2], or a list of {"box": [...], "label": ...}, or JSON of either, or [] for none. Whatever
    else stands beside a box, such as COCO's `segmentation`, is left alone in data (in JSON text it is refused). `space`
    says what its coordinates count; `size` is the picture's [width, height], if known. The argument `space` is that of
    answers; None: the same.

    Raises:
        ScoringFailed: the references are malformed, which is no fault of the answer's.
    """
    given, size = references.get("space"), _size(references.get("size"))
    if given not in SPACES:
        raise ScoringFailed(f"references['space'] is {given!r}; it is one of {', '.join(SPACES)}", "reference")
    try:
        boxes = tuple(boxes_of(_boxes_alone(references["answer"]), given, size))
    except InvalidAnswer as why:
        raise ScoringFailed(f"references['answer']: {why}", "reference") from why
    unlabelled = sum(box.label is None for box in boxes)
    if unlabelled not in (0, len(boxes)):
        raise ScoringFailed(f"references['answer']: {unlabelled} of {len(boxes)} boxes have no label", "reference")
    return TrueBoxes(boxes, given, space or given, size)


def _boxes_alone(value: Any) -> Any:
    """Objects that are boxes without what else a data set says of them."""
    if isinstance(value, list | tuple):
        return [_boxes_alone(part) for part in value]
    if isinstance(value, Mapping) and any(key in value for key in BOX_KEYS):
        return {key: part for key, part in value.items() if key in BOX_KEYS}
    return value


def _size(value: Any) -> Size | None:
    if value is None:
        return None
    fit = isinstance(value, list | tuple) and len(value) == 2
    if not fit or not all(isinstance(side, int | float) and math.isfinite(side) and side > 0 for side in value):
        raise ScoringFailed(f"references['size'] is {value!r:.60}; [width, height] in pixels is due", "reference")
    return float(value[0]), float(value[1])
