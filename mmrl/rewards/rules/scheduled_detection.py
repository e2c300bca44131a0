"""Detection rewards whose IoU thresholds rise during training: V-Triune's dynamic IoU and Vision-R1's criteria.

The threshold of dynamic IoU rises to 0.99. Small boxes cannot reach it on a grid of whole numbers: of boxes with sides
of 30 to 100 thousandths of the picture, 13 % have an answer on the 0-1000 grid that reaches it; of boxes with sides of
30 to 100 pixels in a picture of 1920 by 1080, 3 %. All other boxes score 0 from a quarter of training on, even for the
best possible answer, and give no learning signal. `ReachableIoU` caps the thresholds accordingly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import clamp_below_one
from mmrl.rewards.parsing.boxes import Box, LabelledBox, Space, TrueBoxes, convert_box
from mmrl.rewards.rules.detection import DetectionReward, check_iou_threshold
from mmrl.rewards.rules.region_iou import pairwise_iou

_ROUNDING = 1e-9  # of IoU: two grid boxes that are equally good may differ in the last bit


class DynamicIoU(DetectionReward):
    """V-Triune's dynamic IoU: overlap counts past a threshold that rises from 0.85 to 0.95 and 0.99 during training.

    Σ IoU of the matches / (matches + ½ · unmatched on both sides), in [0, 1]. With a single box on either side it is
    the IoU, or 0 below the threshold. The threshold is 0.85 up to 10 % of training, 0.95 up to 25 %, then 0.99.
    Also returns `dynamic_iou_matched`, the fraction of true boxes past the threshold.

    Thresholds from MiniMax-AI/One-RL-to-See-Them-All reward_server/verify.py@2de4b12. Not ported: its IoU-first
    matching overwrites the best pair with the last one, so that a perfect detection in another order scores about 0;
    its penalty 0.6^|answered − true| rewards an additional wrong box if boxes are missing; it drops malformed boxes
    silently, repairs truncated lists, and replaces the apostrophes in labels.
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
        self.thresholds, self.until = tuple(thresholds), tuple(until)

    def threshold_at(self, progress: float) -> float:
        """Return the threshold at a completed fraction of training."""
        return self.thresholds[sum(progress > share for share in self.until)]

    def threshold_of(self, truth: TrueBoxes, progress: float) -> float | NDArray[np.float64]:
        """Return the threshold of all true boxes, or [M] with that of each."""
        return self.threshold_at(progress)

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        found = self.match(answered, truth, self.threshold_of(truth, progress))
        both = found.answers + found.truths
        score = 2 * float(found.overlaps.sum()) / both if both else 1.0
        return {self.name: score if score == 1 else clamp_below_one(score), f"{self.name}_matched": found.recall}


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
    ) -> None:
        super().__init__(space, labels, thresholds, until)
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


class VisionR1(DetectionReward):
    """Vision-R1's criterion reward: the mean of format, recall and precision, with thresholds that rise in training.

    In [0, 1]; with ξ₁ = 0.5 and ξ₂ = 0.75 up to the fraction `tighten_at` of training, and 0.75 and 0.9 after it:

    - format: 1 if every box has a label or the true boxes have none (an answer without a list of boxes is invalid: 0);
    - recall: the fraction of true boxes matched with an IoU of at least ξ₁, or 0 if that is below one half;
    - precision: sum of the matches' IoU, where ξ₂ or more counts as 1, over the number of answered boxes.

    Also returns `vision_r1_format`, `vision_r1_recall`, `vision_r1_precision`. By design a box past ξ₂ counts in full.
    Ported from jefferyZhan/Griffon Vision-R1/vision_r1/visionr1_qwen.py@499aa8b (tightened at step 1500), with the
    precision of its later EasyR1 version: the first divides by the number of matches, which makes box spam free.
    Not ported: overlap is GIoU there, matched by a cost dominated by pixel distances; a wrong label costs nothing;
    format is inverted if there is nothing to find, which rewards garbage; and a recall above 0.75 becomes 1, so that an
    answer that leaves out one box in five is perfect.
    """

    name = "vision_r1"
    source = "Vision-R1, arXiv:2503.18013"
    scheduled = True

    def __init__(self, space: Space | None = None, labels: bool = True, tighten_at: float = 0.5) -> None:
        super().__init__(space, labels)
        if not 0 <= tighten_at <= 1:
            raise RewardError(f"{self.name}: tighten_at is {tighten_at}; it is a fraction of training, in [0, 1]")
        self.tighten_at = tighten_at

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        low, high = EARLY if progress <= self.tighten_at else LATE
        found = self.match(answered, truth, low)
        needs_labels = self.labels and truth.labelled
        parts = {
            "vision_r1_format": float(not needs_labels or all(box.label is not None for box in answered)),
            "vision_r1_recall": found.recall if found.recall >= 0.5 else 0.0,
            "vision_r1_precision": float(_graded(found.overlaps, high).sum() / found.answers)
            if found.answers
            else found.precision,
        }
        return {self.name: sum(parts.values()) / len(parts), **parts}


def _graded(overlaps: NDArray[np.float64], high: float) -> NDArray[np.float64]:
    return np.where(overlaps >= high, 1.0, overlaps)
