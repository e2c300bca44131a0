"""COCO's mean average precision over all images: matched by pycocotools, accumulated here so that it can be resampled.

An image that a resample contains twice has a weight of 2 on its boxes: matching is done once, and a resample costs one
cumulative sum. If all scores differ, the result equals that of pycocotools.

Boxes of equal score are one point of the curve, as in `mmrl.rewards.rules.detection`: answers without
scores are then measured by precision x recall for any order of the images, while pycocotools ranks them in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmrl.benchmarks.metrics import Direction, MetricFunction, Row
from mmrl.benchmarks.metrics.means import final_answer
from mmrl.errors import EvaluationError
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.parsing.boxes import Box, LabelledBox, Size, Space, convert_box, parse_labelled_boxes, true_boxes
from mmrl.rewards.rules.detection import plain_label, suppress_output

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
RECALLS = np.linspace(0, 1, 101)
MAX_DETECTIONS = 100
"""Number of boxes of one category on one image that count, in order of falling score (COCO's maxDets)."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CocoMAP:
    """Mean over categories and IoU thresholds of the average precision, in [0, 1].

    `iou`: one threshold (AP50: 0.5); unset: COCO's ten from 0.50 to 0.95. Categories are those with an
    object in any image; labels are compared as the detection rewards compare them, without regard to case. True boxes
    are the samples' answers; those of `metadata["crowd"]` (in [0, 1]) are COCO's crowds, where boxes are neither hits
    nor misses. An answer that cannot be read has no boxes.
    """

    iou: float | None = None
    direction: ClassVar[Direction] = "higher"

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row; see `Metric.prepare`."""
        thresholds = THRESHOLDS if self.iou is None else (self.iou,)
        sides = [_sides(row) for row in rows]
        labels = sorted({str(box.label) for true, _, _ in sides for box in true})
        if not labels:
            return lambda indices: math.nan
        found = _match(sides, labels, thresholds)
        return lambda indices: found.precision(np.bincount(indices, minlength=len(rows)).astype(np.float64))


@dataclass(frozen=True)
class _Matched:
    """All D answered boxes, sorted by category and falling score; each run of equal scores is one of B blocks."""

    picture: Ints  # [D]
    begins: Ints  # [B]; index of the first box of each block
    category: Ints  # [B]; category of each block
    hits: Floats  # [T, D]
    misses: Floats  # [T, D]; neither where a box lies on a crowd
    true_picture: Ints  # [G]
    true_category: Ints  # [G]

    def precision(self, weights: Floats) -> float:
        """Return the mean over categories and thresholds with weighted images; NaN if there are no true boxes."""
        things = np.bincount(
            self.true_category, weights[self.true_picture]
        )  # every category has an object in some image
        there = things > 0
        if not there.any():
            return math.nan
        if not self.picture.size:
            return 0.0
        first = np.searchsorted(self.category, self.category)  # the first block of each block's category
        hits, misses = (self._counted(each * weights[self.picture], first) for each in (self.hits, self.misses))
        answered = hits + misses
        precision = np.divide(hits, answered, out=np.zeros_like(hits), where=answered > 0)
        lift = 2.0 * (len(things) - self.category)  # keeps the running maximum from crossing into the next category
        best = np.maximum.accumulate((precision + lift)[:, ::-1], axis=1)[:, ::-1] - lift
        reached = np.searchsorted(RECALLS, hits / np.where(there, things, 1.0)[self.category], side="right")
        new = np.diff(reached, axis=1, prepend=0)
        new[:, first == np.arange(len(first))] = reached[:, first == np.arange(len(first))]
        counted = (best * new)[:, there[self.category]].sum()
        return float(counted / (len(self.hits) * len(RECALLS) * there.sum()))

    def _counted(self, values: Floats, first: Ints) -> Floats:
        """Return the cumulative sum [T, B] of a category's values up to the end of each block."""
        sums = np.add.reduceat(values, self.begins, axis=1).cumsum(axis=1)
        before = np.concatenate([np.zeros((len(sums), 1)), sums], axis=1)[:, first]
        counted: Floats = sums - before
        return counted


_Sides = tuple[list[LabelledBox], list[LabelledBox], list[LabelledBox]]  # true, crowds, answered; all in [0, 1]


def _sides(row: Row) -> _Sides:
    sample = row.sample
    references: Mapping[str, Any] = {**sample.metadata, "answer": sample.answer}
    requested = next((choice.args["space"] for choice in sample.rewards if "space" in choice.args), None)
    space: Space = requested or sample.metadata.get("space", "pixel")
    size: Size | None = tuple(sample.metadata["size"]) if "size" in sample.metadata else None
    try:
        truth = true_boxes(references)
        true = [_shares(box, truth.reference_space, truth.size) for box in truth.boxes]
    except ScoringFailed as err:
        raise EvaluationError(f"sample {row.id!r}: {err}") from None
    crowds = [
        LabelledBox(_box(each["box"]), plain_label(str(each["label"]))) for each in sample.metadata.get("crowd", ())
    ]
    try:
        answered = [_shares(box, space, size) for box in parse_labelled_boxes(final_answer(row), space, size)]
    except InvalidAnswer:
        answered = []
    return true, crowds, answered


def _shares(found: LabelledBox, space: Space, size: Size | None) -> LabelledBox:
    return LabelledBox(convert_box(found.box, space, "norm_1", size), plain_label(found.label), found.score)


def _box(values: Sequence[float]) -> Box:
    x1, y1, x2, y2 = values
    return x1, y1, x2, y2


def _match(sides: Sequence[_Sides], labels: Sequence[str], thresholds: Sequence[float]) -> _Matched:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    numbers = {label: number for number, label in enumerate(labels, start=1)}
    truth: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for picture, (true, crowds, answered) in enumerate(sides):
        for boxes, onto, crowd in ((true, truth, 0), (crowds, truth, 1), (answered, answers, 0)):
            for box in boxes:
                if box.label in numbers:  # a category without objects has no precision
                    onto.append(_annotation(box, len(onto) + 1, picture, numbers[box.label], crowd))
    pair = []
    for boxes_of_side in (truth, answers):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": picture} for picture in range(len(sides))],
            "categories": [{"id": number} for number in numbers.values()],
            "annotations": boxes_of_side,
        }
        suppress_output(COCO.createIndex)(coco)
        pair.append(coco)
    run = COCOeval(*pair, "bbox")
    run.params.iouThrs = np.array(thresholds)
    run.params.maxDets = [MAX_DETECTIONS]
    run.params.areaRng, run.params.areaRngLbl = [[0, float("inf")]], ["all"]
    suppress_output(COCOeval.evaluate)(run)
    return _sorted([each for each in run.evalImgs if each is not None], len(thresholds))


def _sorted(found: Sequence[Mapping[str, Any]], thresholds: int) -> _Matched:
    """Return the matches of pycocotools, sorted by category and falling score."""
    boxes = [len(each["dtScores"]) for each in found]
    things = [int((each["gtIgnore"] == 0).sum()) for each in found]
    pictures, categories = (np.array([each[key] for each in found], np.int64) for key in ("image_id", "category_id"))
    score = np.concatenate([np.empty(0), *(each["dtScores"] for each in found)])
    category = np.repeat(categories - 1, boxes)
    order = np.lexsort((-score, category))
    score, category = score[order], category[order]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(score) != 0) | (np.diff(category) != 0)
    none = np.empty((thresholds, 0))
    sides = [np.concatenate([none, *(each[key] for each in found)], axis=1) for key in ("dtMatches", "dtIgnore")]
    matched, ignored = (side[:, order] > 0 for side in sides)
    return _Matched(
        picture=np.repeat(pictures, boxes)[order],
        begins=np.flatnonzero(new),
        category=category[new],
        hits=(matched & ~ignored).astype(np.float64),
        misses=(~matched & ~ignored).astype(np.float64),
        true_picture=np.repeat(pictures, things),
        true_category=np.repeat(categories - 1, things),
    )


def _annotation(found: LabelledBox, id: int, picture: int, category: int, crowd: int) -> dict[str, Any]:
    x1, y1, x2, y2 = found.box
    return {
        "id": id,
        "image_id": picture,
        "category_id": category,
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "area": (x2 - x1) * (y2 - y1),
        "iscrowd": crowd,
        "score": 1.0 if found.score is None else found.score,
    }
