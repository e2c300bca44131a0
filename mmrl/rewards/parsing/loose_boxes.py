"""Boxes in an answer as V-Triune's verifier reads them: malformed boxes are left out, a truncated list is repaired."""

from __future__ import annotations

import json
import math
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import LabelledBox


def parse_loose_boxes(text: str, labelled: bool) -> list[LabelledBox]:
    """Return the well-formed boxes of a list of {"bbox_2d": [x1, y1, x2, y2], "label": ...}, in lower case.

    Double brackets become single ones, what follows the last complete object of a list without an end is dropped,
    single quotes become double ones and backslashes vanish; of boxes with the same corners the first is kept. As in
    MiniMax-AI/One-RL-to-See-Them-All reward_server/utils/det_helper.py@2de4b12, except that labels are required only if
    `labelled`, and that infinite coordinates are malformed.

    Raises:
        InvalidAnswer: there is no list, or none of its boxes is well-formed.
    """
    text = text.lower().replace("[[", "[").replace("]]", "]")
    if not text.endswith("]"):
        text = text.rsplit("},", 1)[0] + "}]"
    try:
        values = json.loads(text.replace("'", '"').replace("\\", ""))
    except (ValueError, RecursionError):
        raise InvalidAnswer(f"no list of boxes in {text!r:.60}") from None
    found: dict[tuple[float, ...], LabelledBox] = {}
    for value in values if isinstance(values, list) else ():
        if (box := _box(value, labelled)) is not None:
            found.setdefault(box.box, box)
    if not found:
        raise InvalidAnswer(f"no well-formed box in {text!r:.60}")
    return list(found.values())


def _box(value: Any, labelled: bool) -> LabelledBox | None:
    corners = value.get("bbox_2d") if isinstance(value, dict) else None
    if not isinstance(corners, list) or len(corners) != 4:
        return None
    if not all(isinstance(each, int | float) for each in corners):
        return None
    try:
        x1, y1, x2, y2 = map(float, corners)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    if not all(map(math.isfinite, (x1, y1, x2, y2))):
        return None
    label = value.get("label")
    if x1 > x2 or y1 > y2 or (labelled and not isinstance(label, str)):
        return None
    return LabelledBox((x1, y1, x2, y2), label if isinstance(label, str) else None)
