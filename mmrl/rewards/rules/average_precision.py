"""COCO's average precision on a single picture, by pycocotools, without its two traps.

Left to itself, COCO's AP rewards box spam: boxes behind the last hit of a ranking cost nothing, and where no scores
are given the ranking is the order in which boxes happen to be written; boxes of a label that the picture does not have
are not counted at all. So here

- boxes of equal score are one point of the curve: at every threshold the misses among them rank before the hits. With
  no scores at all AP is then precision × recall (recall as COCO samples it, at 101 places), in any order;
- a label that only the answer has counts as one with AP 0, however many boxes have it.

With scores that all differ, and no foreign labels, the numbers are pycocotools' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from mmrl.rewards.rules.box_iou import Boxes, pairwise_iou


def average_precision(
    answered: Boxes,  # [N, 4]
    true: Boxes,  # [M, 4]
    answered_labels: Sequence[str | None],  # [N]
    true_labels: Sequence[str | None],  # [M]
    scores: Sequence[float],  # [N]
) -> float:
    """Mean over labels, and over the IoU thresholds 0.50, 0.55, ... 0.95, of the average precision; in [0, 1].

    1 where there is nothing on either side, 0 where there is something on one side only.
    """
    if not len(true) or not len(answered):
        return float(len(true) == len(answered))
    labels = {label: number for number, label in enumerate(dict.fromkeys([*true_labels, *answered_labels]), 1)}
    truth = [_annotation(box, labels[label]) for box, label in zip(true, true_labels, strict=True)]
    best = pairwise_iou(answered, true).max(axis=1)
    # Matching is greedy in this order: one that does not depend on how the answer was written.
    order = sorted(range(len(answered)), key=lambda i: (-scores[i], -best[i], answered[i].tolist()))
    found = [_annotation(answered[i], labels[answered_labels[i]], scores[i]) for i in order]
    precision = _precision(truth, found, list(labels.values()))
    known = set(true_labels)
    by_label = [precision[:, :, row].mean() if label in known else 0.0 for row, label in enumerate(labels)]
    return float(np.mean(by_label))


def _annotation(box: Boxes, category: int, score: float = 1.0) -> dict[str, Any]:
    x1, y1, x2, y2 = box.tolist()
    area = (x2 - x1) * (y2 - y1)
    bbox = [x1, y1, x2 - x1, y2 - y1]
    return {"image_id": 1, "category_id": category, "bbox": bbox, "area": area, "iscrowd": 0, "score": score}


def _precision(truth: list[dict[str, Any]], found: list[dict[str, Any]], categories: list[int]) -> Boxes:
    """Interpolated precision [thresholds, recalls, categories]."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    sides = []
    for boxes in (truth, found):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": 1}],
            "categories": [{"id": category} for category in categories],
            "annotations": [{"id": row, **a} for row, a in enumerate(boxes, 1)],
        }
        suppress_output(COCO.createIndex)(coco)
        sides.append(coco)
    run = COCOeval(*sides, "bbox")
    run.params.maxDets = [len(found)]
    run.params.areaRng, run.params.areaRngLbl = [[0, float("inf")]], ["all"]
    suppress_output(COCOeval.evaluate)(run)
    for one in filter(None, run.evalImgs):
        # Ties: within equal scores (which are adjacent) misses first, at each threshold by itself.
        order = np.lexsort((one["dtMatches"] > 0, np.broadcast_to(-np.array(one["dtScores"]), one["dtMatches"].shape)))
        one["dtMatches"] = np.take_along_axis(one["dtMatches"], order, axis=1)
    suppress_output(COCOeval.accumulate)(run)
    precision: Boxes = run.eval["precision"][:, :, :, 0, 0]
    return precision


def suppress_output(method: Any) -> Any:
    """The same function with a `print` that says nothing.

    pycocotools has no switch for it, and `sys.stdout` belongs to every thread of the process.
    """
    silent = {**method.__globals__, "print": lambda *_: None}
    return FunctionType(method.__code__, silent, method.__name__, method.__defaults__, method.__closure__)
