"""V-Triune's dynamic IoU, and the same with thresholds that an answer can reach.

The threshold rises to 0.99. On a grid of whole numbers that is out of reach for small boxes: of boxes with sides of 30
to 100 thousandths of the picture, 13 % have an answer on the 0-1000 grid that gets there; of boxes with sides of 30 to
100 pixels of a picture of 1920 by 1080, 3 %. The others score 0 for the best answer there is, from a quarter of
training on, and nothing is left to learn from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.parsing.boxes import Box, LabelledBox, Space, TrueBoxes, convert_box
from mmrl.rewards.rules.below_one import below_one
from mmrl.rewards.rules.box_iou import pairwise_iou
from mmrl.rewards.rules.detection import DetectionReward, check_iou_threshold

_ROUNDING = 1e-9  # of IoU: two grid boxes that are equally good may differ in the last bit


class DynamicIoU(DetectionReward):
    """V-Triune's dynamic IoU: overlap counts past a threshold that rises from 0.85 to 0.95 and 0.99 during training.

    Σ IoU of the matches / (matches + ½ · unmatched on both sides), in [0, 1]. For a single box on either side that is
    its IoU, or 0 below the threshold. The threshold is 0.85 up to 10 % of training, 0.95 up to 25 %, then 0.99.
    Also given: `dynamic_iou_matched`, the share of true boxes past the threshold.

    Thresholds from MiniMax-AI/One-RL-to-See-Them-All reward_server/verify.py@2de4b12. What is not kept of it: its
    IoU-first matching overwrites the best pair with the last one, so that a perfect detection in another order scores 0
    or next to it; its penalty 0.6^|answered − true| pays for one wrong box more where boxes are missing; it drops
    malformed boxes silently, repairs truncated lists, and replaces the apostrophes in labels.
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
        """`until` are the shares of training up to which the thresholds but the last hold."""
        super().__init__(space, labels)
        for threshold in thresholds:
            check_iou_threshold(self.name, "a threshold", threshold)
        if len(thresholds) != len(until) + 1 or list(until) != sorted(until):
            raise RewardError(
                f"{self.name}: {len(thresholds)} thresholds and until={list(until)}; one threshold more than shares of "
                "training is due, and those in rising order"
            )
        self.thresholds, self.until = tuple(thresholds), tuple(until)

    def threshold_at(self, progress: float) -> float:
        """The threshold at a share of training."""
        return self.thresholds[sum(progress > share for share in self.until)]

    def threshold_of(self, truth: TrueBoxes, progress: float) -> float | NDArray[np.float64]:
        """The threshold of all true boxes, or [M]: of each."""
        return self.threshold_at(progress)

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        found = self.match(answered, truth, self.threshold_of(truth, progress))
        both = found.answers + found.truths
        score = 2 * float(found.overlaps.sum()) / both if both else 1.0
        return {self.name: score if score == 1 else below_one(score), f"{self.name}_matched": found.recall}


class ReachableIoU(DynamicIoU):
    """Dynamic IoU whose threshold is never above what the best answer in whole numbers reaches.

    As `dynamic_iou`, with the threshold of each true box lowered to the largest IoU that a box on the answers' grid has
    with it, where that is less. The grid has `decimals` places: whole numbers for pixel and norm_1000, three places for
    norm_1, if not said otherwise. Also given: `reachable_iou_matched`.
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
    """[M]: the largest IoU that a box written with `decimals` places in the answers' space has with each true box.

    With three edges fixed, IoU falls as the fourth moves away from its true place, to either side. So the best box on a
    grid has every edge at one of the two neighbours of its true place: 16 boxes to try.
    """
    if decimals is None:
        decimals = 3 if truth.answer_space == "norm_1" else 0
    near = [
        _neighbours(convert_box(true.box, truth.reference_space, truth.answer_space, truth.size), 10**decimals)
        for true in truth.boxes
    ]
    answers, truths = truth.in_common_space([box for boxes in near for box in boxes])
    ends = np.cumsum([len(boxes) for boxes in near])
    each = zip(np.split(answers, ends), truths, strict=False)  # after the last end nothing is left
    return np.array([pairwise_iou(some, true[None]).max() for some, true in each], np.float64)


def _neighbours(box: Box, steps: int) -> list[Box]:
    """The boxes whose edges are at the neighbours of the given ones on a grid of `steps` a unit."""
    edges = np.array(box) * steps
    sides = [sorted({float(np.floor(edge)), float(np.ceil(edge))}) for edge in edges]
    # Divided, not multiplied by a step: 123 / 1000 is the very float that "0.123" is read as.
    boxes = [(a / steps, b / steps, c / steps, d / steps) for a, b, c, d in itertools.product(*sides)]
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in boxes if x1 < x2 and y1 < y2]
