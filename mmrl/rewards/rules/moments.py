"""Rewards for time: the overlap of time spans, and of boxes over time (tubes)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.boxes import (
    MAX_BOXES,
    Box,
    Size,
    Space,
    TrueBoxes,
    check_box,
    extent,
    true_boxes,
)
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.json_text import decode_json, number
from mmrl.rewards.parsing.points import check_comparable, exact_fraction
from mmrl.rewards.parsing.spans import Span, merge_spans, parse_spans, spans_from_json
from mmrl.rewards.rules.detection import check_iou_threshold
from mmrl.rewards.rules.region_iou import SpaceReward, pairwise_iou

_FRAME = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_FRAME_KEYS, _BOX_KEYS = ("frame", "time", "second"), ("box", "bbox", "bbox_2d")


class TemporalIoU(Reward):
    """Intersection over union of the answered and the true time spans.

    Several spans count as their union, so that order and subdivision do not matter. `references["answer"]` is
    [start, end] in seconds, or a list of such pairs, or {"start": ..., "end": ...}, or text; [] if there is nothing to
    find, for which only the answer [] scores 1. Swapped ends, spans without length and negative times are invalid.

    Temporal-R1 (arXiv:2506.01908; appletea233/Temporal-R1 verl/utils/reward_score/tvg.py) divides by the smallest span
    around both, which is the union if they overlap; if they do not, both scores are 0.
    """

    name, needs, range = "temporal_iou", ("text", "references.answer"), (0.0, 1.0)
    source = "Temporal-R1, arXiv:2506.01908, on unions of spans"

    def __init__(self, threshold: float | None = None) -> None:
        """`threshold`: 1 for an IoU of at least this and 0 for any other, hit or miss; None: the IoU itself.

        Raises:
            RewardError: `threshold` is not in (0, 1].
        """
        if threshold is not None:
            check_iou_threshold(self.name, "threshold", threshold)
        self.threshold = threshold

    def score_one(self, item: RewardInput) -> float:
        try:
            answer = item.references["answer"]
            truth = merge_spans(parse_spans(answer) if isinstance(answer, str) else spans_from_json(answer))
        except InvalidAnswer as err:
            raise ScoringFailed(f"references['answer']: {err}", "reference") from err
        iou = temporal_iou(merge_spans(parse_spans(answer_text(item.text or "", resolve_form(item)))), truth)
        return iou if self.threshold is None else float(iou >= self.threshold)


class TubeIoU(SpaceReward):
    """vIoU: the mean IoU of answered and true boxes over all frames in which either has one.

    Σ IoU over the frames that both have, divided by the number of frames that either has, in [0, 1] (VidSTG,
    arXiv:2001.06891). The answer is JSON: {"12": [x1, y1, x2, y2], ...} by frame or second, or a list of
    {"frame": 12, "box": [...]} (also "time", "second"; "bbox", "bbox_2d"). `references["answer"]` has the same form,
    and its keys define what is counted; `space` and `size` are as for `box_iou`. Frames are compared as written (12 is
    12.0), never interpolated: the prompt should request the frames of the reference. If there is nothing to find, {} is
    right.
    """

    name, needs, range = "tube_iou", ("text", "references.answer", "references.space"), (0.0, 1.0)
    source = "vIoU of VidSTG, arXiv:2001.06891"

    def score_one(self, item: RewardInput) -> float:
        truth, true_tube = self._truth(item.references)
        check_comparable(truth)
        tube = tube_from_json(decode_json(answer_text(item.text or "", resolve_form(item))))
        answered = {frame: check_box(box, truth.answer_space, truth.size) for frame, box in tube.items()}
        if _fractions(answered, truth.answer_space, truth.size) == _fractions(
            true_tube, truth.reference_space, truth.size
        ):
            return 1.0
        return clamp_below_one(tube_iou(*_in_one_space(answered, true_tube, truth)))

    def _truth(self, references: Mapping[str, Any]) -> tuple[TrueBoxes, dict[Decimal, Sequence[float]]]:
        try:
            tube = tube_from_json(references["answer"])
        except InvalidAnswer as err:
            raise ScoringFailed(f"references['answer']: {err}", "reference") from err
        truth = true_boxes({**references, "answer": list(tube.values())}, self.space)
        return truth, tube


def temporal_iou(answered: Sequence[Span], truth: Sequence[Span]) -> float:
    """Return the IoU of two results of `merge_spans`; 1 only for equal unions, empty ones included."""
    if list(answered) == list(truth):
        return 1.0
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in _meeting(answered, truth))
    either = sum(end - start for start, end in (*answered, *truth)) - both
    return clamp_below_one(both / either)


def _meeting(first: Sequence[Span], second: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Yield the pairs of spans that may overlap, in one pass over both unions."""
    i = j = 0
    while i < len(first) and j < len(second):
        yield first[i], second[j]
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1


def tube_iou(answered: Mapping[Decimal, Box], truth: Mapping[Decimal, Box]) -> float:
    """Return the vIoU of two tubes {frame: box} in one space, at least one of which has a frame."""
    shared = sorted(answered.keys() & truth.keys())
    rows = [np.array([tube[frame] for frame in shared], np.float64).reshape(-1, 4) for tube in (answered, truth)]
    overlaps = sum(float(pairwise_iou(a[None], b[None])[0, 0]) for a, b in zip(*rows, strict=True))
    return overlaps / len(answered.keys() | truth.keys())


def tube_from_json(value: Any) -> dict[Decimal, Sequence[float]]:
    """Return {frame: box} from a JSON value; the boxes are not checked.

    Raises:
        InvalidAnswer: the value has another form, or a frame occurs twice.
    """
    if isinstance(value, Mapping):
        rows = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        rows = [(_only(row, _FRAME_KEYS), _only(row, _BOX_KEYS)) for row in value]
    else:
        raise InvalidAnswer(f"{value!r:.60} is not a tube; expected boxes by frame")
    if len(rows) > MAX_BOXES:
        raise InvalidAnswer(f"the tube has {len(rows)} boxes; at most {MAX_BOXES} are read")
    tube: dict[Decimal, Sequence[float]] = {}
    for key, box in rows:
        frame = _frame(key)
        if frame in tube:
            raise InvalidAnswer(f"the frame {key!r} has two boxes")
        if not isinstance(box, Sequence) or isinstance(box, str) or len(box) != 4:
            raise InvalidAnswer(f"a box has four numbers, not {box!r:.60}")
        tube[frame] = [number(coordinate, "a coordinate") for coordinate in box]
    return tube


def _frame(key: Any) -> Decimal:
    """Return the frame of a key; 12, 12.0 and "12" are the same frame."""
    written = str(key) if isinstance(key, int | float | str) and not isinstance(key, bool) else ""
    if not _FRAME.fullmatch(written):
        raise InvalidAnswer(f"{key!r:.40} is neither a frame nor a second")
    return Decimal(written)


def _only(row: Any, keys: tuple[str, ...]) -> Any:
    found = [row[key] for key in keys if key in row] if isinstance(row, Mapping) else []
    if len(found) != 1:
        raise InvalidAnswer(f"{row!r:.60} has {len(found)} of {', '.join(keys)}, not one")
    return found[0]


def _in_one_space(
    answered: Mapping[Decimal, Box], truth: Mapping[Decimal, Sequence[float]], spaces: TrueBoxes
) -> tuple[dict[Decimal, Box], dict[Decimal, Box]]:
    first, second = spaces.in_common_space(list(answered.values()))
    return (
        {frame: _box(row) for frame, row in zip(answered, first, strict=True)},
        {frame: _box(row) for frame, row in zip(truth, second, strict=True)},
    )


def _fractions(
    tube: Mapping[Decimal, Sequence[float]], space: Space, size: Size | None
) -> dict[Decimal, list[Fraction]]:
    """Return a tube in exact fractions of the picture, so that equal tubes in different spaces compare equal."""
    width, height = extent(space, size)
    return {
        frame: [exact_fraction(coordinate, height if at % 2 else width) for at, coordinate in enumerate(box)]
        for frame, box in tube.items()
    }


def _box(row: NDArray[np.float64]) -> Box:
    x1, y1, x2, y2 = row.tolist()
    return x1, y1, x2, y2
