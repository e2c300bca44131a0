"""Detection rewards whose IoU thresholds rise during training: V-Triune's dynamic IoU and Vision-R1's criteria.

The threshold of dynamic IoU rises to 0.99. Small boxes cannot reach it on a grid of whole numbers: of boxes with sides
of 30 to 100 thousandths of the picture, 13 % have an answer on the 0-1000 grid that reaches it; of boxes with sides of
30 to 100 pixels in a picture of 1920 by 1080, 3 %. All other boxes score 0 from a quarter of training on, even for the
best possible answer, and give no learning signal. `ReachableIoU` caps the thresholds accordingly.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.core.reward_io import clamp_below_one
from mmrl.rewards.parsing.boxes import Box, LabelledBox, Space, TrueBoxes, convert_box
from mmrl.rewards.rules.detection import DetectionReward, Matching, check_iou_threshold
from mmrl.rewards.rules.region_iou import Boxes, pairwise_giou, pairwise_iou

_ROUNDING = 1e-9  # of IoU: two grid boxes that are equally good may differ in the last bit


class DynamicIoU(DetectionReward):
    """V-Triune's dynamic IoU: overlap counts past a threshold that rises from 0.85 to 0.95 and 0.99 during training.

    Σ IoU of the matches / (matches + ½ · unmatched on both sides), in [0, 1]. With a single box on either side it is
    the IoU, or 0 below the threshold. The threshold is 0.85 up to 10 % of training, 0.95 up to 25 %, then 0.99.
    Also returns `dynamic_iou_matched`, the fraction of true boxes past the threshold.

    Thresholds from MiniMax-AI/One-RL-to-See-Them-All reward_server/verify.py@2de4b12. With `published` the score is
    that code's as well, with the weights of its training data:

        (0.7 · Σ IoU / true + 0.3 · (precision + recall) / 2) · 0.6^|answered − true|

    over pairs in which each true box in turn takes the free answered box of its label that overlaps it most, if that is
    past the threshold; see `parse_loose_boxes` for its parsing. That penalty rewards an additional wrong box if boxes
    are missing, and the pairs depend on the order of the true boxes. An answer without boxes is invalid, and no answer
    fits a picture without true boxes. Not ported: its IoU-first matching, whose weight is 0 there and which overwrites
    the best pair with the last one.
    """

    name = "dynamic_iou"
    source = "V-Triune, arXiv:2505.18129"
    scheduled = True

    def __init__(
        self,
        space: Space | None = None,
        labels: bool = True,
        thresholds: Sequence[float] = (0.85, 0.95, 0.99),
        until: Sequence[float] = (0.1, 0.25),
        published: bool = False,
    ) -> None:
        """Check the arguments; `until[i]` is the fraction of training up to which `thresholds[i]` holds."""
        super().__init__(space, labels)
        for threshold in thresholds:
            check_iou_threshold(self.name, "a threshold", threshold)
        if len(thresholds) != len(until) + 1 or list(until) != sorted(until):
            raise RewardError(
                f"{self.name}: {len(thresholds)} thresholds and until={list(until)}; expected one threshold more than "
                "fractions of training, and those in rising order"
            )
        self.thresholds, self.until, self.published = tuple(thresholds), tuple(until), published

    def threshold_at(self, progress: float) -> float:
        """Return the threshold at a completed fraction of training."""
        return self.thresholds[sum(progress > share for share in self.until)]

    def threshold_of(self, truth: TrueBoxes, progress: float) -> float | NDArray[np.float64]:
        """Return the threshold of all true boxes, or [M] with that of each."""
        return self.threshold_at(progress)

    def parse(self, text: str, truth: TrueBoxes) -> list[LabelledBox]:
        if self.published:
            return parse_loose_boxes(text, self.labels and truth.labelled)
        return super().parse(text, truth)

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        threshold = self.threshold_of(truth, progress)
        if self.published:
            overlap = pairwise_iou(*truth.in_common_space([box.box for box in answered]))
            found = match_by_true_box(overlap, threshold, self.agree(answered, truth))
            return {self.name: published_score(found), f"{self.name}_matched": found.recall}
        found = self.match(answered, truth, threshold)
        both = found.answers + found.truths
        score = 2 * float(found.overlaps.sum()) / both if both else 1.0
        return {self.name: score if score == 1 else clamp_below_one(score), f"{self.name}_matched": found.recall}


COMPLETENESS, COUNT_PENALTY = 0.3, 0.6
"""The share of precision and recall in V-Triune's score, and its factor for each box too many or too few."""


def match_by_true_box(
    overlap: NDArray[np.float64],  # [N, M] of answered and true, in [0, 1]
    threshold: float | NDArray[np.float64],  # scalar, or [M]: one for each true box
    allowed: NDArray[np.bool_] | None = None,  # [N, M]; None: every pair
) -> Matching:
    """Return the pairs that V-Triune's label-first matching finds: each true box in turn takes the best free one."""
    answers, truths = overlap.shape
    free = np.where(np.ones_like(overlap, bool) if allowed is None else allowed, overlap, -1.0)
    least = np.broadcast_to(threshold, truths)
    pairs: list[tuple[int, int]] = []
    for column in range(truths if answers else 0):
        best = int(free[:, column].argmax())
        if free[best, column] >= least[column]:
            pairs.append((best, column))
            free[best] = -1.0
    rows, columns = np.array(pairs, np.intp).reshape(-1, 2).T
    return Matching(rows, columns, overlap[rows, columns], answers, truths)


def published_score(found: Matching) -> float:
    """Return the score of V-Triune's verifier, in [0, 1]."""
    if not found.truths:
        return 0.0
    complete = (found.precision + found.recall) / 2
    score = (1 - COMPLETENESS) * float(found.overlaps.sum()) / found.truths + COMPLETENESS * complete
    score *= COUNT_PENALTY ** abs(found.answers - found.truths)
    return 1.0 if score == 1 else clamp_below_one(score)


class ReachableIoU(DynamicIoU):
    """Dynamic IoU whose threshold never exceeds the IoU of the best answer in whole numbers.

    As `dynamic_iou`, with the threshold of each true box lowered to the largest IoU of any box on the answers' grid,
    if that is less. The grid has `decimals` decimal places; None means whole numbers for pixel and norm_1000, and three
    places for norm_1. Also returns `reachable_iou_matched`.
    """

    name = "reachable_iou"
    source = "V-Triune, arXiv:2505.18129, thresholds capped"

    def __init__(
        self,
        space: Space | None = None,
        labels: bool = True,
        thresholds: Sequence[float] = (0.85, 0.95, 0.99),
        until: Sequence[float] = (0.1, 0.25),
        decimals: int | None = None,
        published: bool = False,
    ) -> None:
        super().__init__(space, labels, thresholds, until, published)
        if decimals is not None and not 0 <= decimals <= 6:
            raise RewardError(f"{self.name}: decimals is {decimals}; it is a whole number from 0 to 6")
        self.decimals = decimals

    def threshold_of(self, truth: TrueBoxes, progress: float) -> NDArray[np.float64]:
        return np.minimum(self.threshold_at(progress), max_reachable_iou(truth, self.decimals) - _ROUNDING)


def max_reachable_iou(truth: TrueBoxes, decimals: int | None = None) -> NDArray[np.float64]:
    """Return [M], the largest IoU of each true box with a box of `decimals` decimal places in the answers' space.

    With three edges fixed, IoU falls as the fourth moves away from its true position, to either side. So the best box
    on a grid has every edge at one of the two grid neighbours of its true position: 16 candidates.
    """
    if decimals is None:
        decimals = 3 if truth.answer_space == "norm_1" else 0
    near = [
        _neighbours(convert_box(true.box, truth.reference_space, truth.answer_space, truth.size), 10**decimals)
        for true in truth.boxes
    ]
    answers, truths = truth.in_common_space([box for boxes in near for box in boxes])
    ends = np.cumsum([len(boxes) for boxes in near])
    each = zip(np.split(answers, ends), truths, strict=False)  # nothing follows the last end
    return np.array([pairwise_iou(some, true[None]).max() for some, true in each], np.float64)


def _neighbours(box: Box, steps: int) -> list[Box]:
    """Return the boxes whose edges are at the neighbours of the box's edges on a grid of `steps` per unit."""
    edges = np.array(box) * steps
    sides = [sorted({float(np.floor(edge)), float(np.ceil(edge))}) for edge in edges]
    # Divided, not multiplied by a step: 123 / 1000 is the float that "0.123" is parsed as.
    boxes = [(a / steps, b / steps, c / steps, d / steps) for a, b, c, d in itertools.product(*sides)]
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in boxes if x1 < x2 and y1 < y2]


EARLY, LATE = (0.5, 0.75), (0.75, 0.9)
"""Vision-R1's ξ₁ and ξ₂, before and after tightening: a box counts 0 below the first, and 1 from the second on."""


VISION_R1_PARTS = ("format", "recall", "precision")


class VisionR1(DetectionReward):
    """Vision-R1's criterion reward: the mean of format, recall and precision, with thresholds that rise in training.

    In [0, 1]; with ξ₁ = 0.5 and ξ₂ = 0.75 up to the fraction `tighten_at` of training, and 0.75 and 0.9 after it:

    - format: 1 if every box has a label or the true boxes have none (an answer without a list of boxes is invalid: 0);
    - recall: the fraction of true boxes matched with an IoU of at least ξ₁, or 0 if that is below one half;
    - precision: sum of the matches' IoU, where ξ₂ or more counts as 1, over the number of answered boxes.

    `parts` names those that count. Also returns `vision_r1_format`, `vision_r1_recall` and `vision_r1_precision`. By
    design a box past ξ₂ counts in full.

    With `published`, equations 3 to 8 of the paper: boxes are matched by the Hungarian algorithm with the cost of
    `match_by_box_cost`, and labels do not count; recall, too, is 0 below ξ₁ and 1 from ξ₂ on, so that an answer that
    leaves out one box in five is perfect. The paper's sum of the three parts is three times this mean.

    The authors' code (jefferyZhan/Griffon Vision-R1/vision_r1/visionr1_qwen.py@499aa8b, tightened at step 1500 of about
    3000) differs from the paper: GIoU stands in the place of IoU, the thresholds of recall are never tightened, format
    is inverted if there is nothing to find, which rewards garbage, and precision is divided by the number of matches,
    which makes box spam free; its later EasyR1 version divides by the number of answered boxes, as the paper and this
    class do.
    """

    name = "vision_r1"
    source = "Vision-R1, arXiv:2503.18013"
    scheduled = True

    def __init__(
        self,
        space: Space | None = None,
        labels: bool = True,
        tighten_at: float = 0.5,
        parts: Sequence[str] = VISION_R1_PARTS,
        published: bool = False,
    ) -> None:
        super().__init__(space, labels)
        if not 0 <= tighten_at <= 1:
            raise RewardError(f"{self.name}: tighten_at is {tighten_at}; it is a fraction of training, in [0, 1]")
        if not parts or len(set(parts)) < len(parts) or not set(parts) <= set(VISION_R1_PARTS):
            raise RewardError(f"{self.name}: parts is {parts!r}; it lists some of {', '.join(VISION_R1_PARTS)}")
        self.tighten_at, self.parts, self.published = tighten_at, tuple(parts), published

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        low, high = EARLY if progress <= self.tighten_at else LATE
        if self.published:
            found = match_by_box_cost(*truth.in_common_space([box.box for box in answered]), low)
            recall = _graded(np.array(found.recall), low, high)
        else:
            found = self.match(answered, truth, low)
            recall = np.array(found.recall if found.recall >= 0.5 else 0.0)
        graded = _graded(found.overlaps, low, high)
        needs_labels = self.labels and truth.labelled
        every = {
            "vision_r1_format": float(not needs_labels or all(box.label is not None for box in answered)),
            "vision_r1_recall": float(recall),
            "vision_r1_precision": float(graded.sum() / found.answers) if found.answers else found.precision,
        }
        return {self.name: sum(every[f"{self.name}_{part}"] for part in self.parts) / len(self.parts), **every}


def match_by_box_cost(
    answered: Boxes,  # [N, 4]
    true: Boxes,  # [M, 4]
    threshold: float,
) -> Matching:
    """Return the pairs of least cost whose IoU reaches the threshold: Vision-R1's matching by boxes alone.

    The cost of a pair is the sum of the distances of the four coordinates, in the unit of the boxes, less the GIoU. All
    of the smaller side are paired before the threshold, so a box may lose its best partner to another pair.
    """
    from scipy.optimize import linear_sum_assignment

    distance = np.abs(answered[:, None] - true[None]).sum(-1)
    rows, columns = linear_sum_assignment(distance - pairwise_giou(answered, true))
    overlaps = pairwise_iou(answered, true)[rows, columns]
    valid = overlaps >= threshold
    return Matching(rows[valid], columns[valid], overlaps[valid], len(answered), len(true))


def _graded(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    return np.where(values >= high, 1.0, np.where(values >= low, values, 0.0))


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
