"""Answered boxes against true ones, matched one-to-one: F1, mAP, VLM-R1's odLength, DIP-R1's weighted precision-recall.

References of all of them: `answer`, a list of {"box": [x1, y1, x2, y2], "label": ...} (or of bare boxes; [] where there
is nothing to find), `space`, and `size` where it is needed (see `mmrl.rewards.parsing.boxes`). Nothing to find
and nothing answered is perfect; the order of boxes never matters.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.parsing.boxes import LabelledBox, Space, TrueBoxes, check_space, parse_labelled_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.rules.average_precision import average_precision
from mmrl.rewards.rules.below_one import below_one
from mmrl.rewards.rules.box_iou import pairwise_iou


class DetectionReward(Reward):
    """An answer that is a list of boxes, with labels or without. Not a reward by itself: what such rewards extend."""

    needs = ("text", "references.answer", "references.space")
    range = (0.0, 1.0)

    def __init__(self, space: Space | None = None, labels: bool = True) -> None:
        """`space` is what coordinates in answers count; None: what those of the reference do.

        With `labels`, a box stands for a true one of the same label only, where the true ones have labels. Labels agree
        if they differ in nothing but case and white space; look-alike letters of other scripts are others.
        """
        check_space(self.name, space)
        self.space, self.labels = space, labels

    @abstractmethod
    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float | Mapping[str, float]:
        """The score of answered boxes."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """The score at the start of training."""
        return self.score_in(item, RewardContext())

    def score_in(self, item: RewardInput, context: RewardContext) -> float | Mapping[str, float]:
        truth = true_boxes(item.references, self.space)
        answered = parse_labelled_boxes(
            answer_text(item.text or "", resolve_form(item)), truth.answer_space, truth.size
        )
        return self.compare(answered, truth, context.progress)

    def match(self, answered: list[LabelledBox], truth: TrueBoxes, threshold: float | NDArray[np.float64]) -> Matching:
        """The best one-to-one matching of boxes that overlap enough and agree in label."""
        overlap = pairwise_iou(*truth.in_common_space([box.box for box in answered]))
        return match(overlap, threshold, self.agree(answered, truth))

    def agree(self, answered: Sequence[LabelledBox], truth: TrueBoxes) -> NDArray[np.bool_] | None:
        """[N, M]: which pairs have the same label; None: labels do not matter."""
        if not self.labels or not truth.labelled:
            return None
        ours, theirs = (np.array([plain_label(b.label) for b in side], object) for side in (answered, truth.boxes))
        same: NDArray[np.bool_] = ours[:, None] == theirs[None, :]
        return same


def plain_label(label: str | None) -> str | None:
    """A label as it is compared: composed Unicode, white space collapsed, no case."""
    return None if label is None else " ".join(unicodedata.normalize("NFC", label).split()).casefold()


class DetectionF1(DetectionReward):
    """F1 of the answered boxes: those that match a true box, against all on both sides.

    2·matches / (answered + true), in [0, 1]; matches have an IoU of at least `threshold` and, with `labels`, the same
    label, and are as many as one-to-one matching allows. Also given: `detection_precision` and `detection_recall`.
    Perfect is every true box found and no box more; a box past the threshold counts in full.
    """

    name = "detection_f1"
    source = "F1 over Hungarian matching"

    def __init__(self, space: Space | None = None, labels: bool = True, threshold: float = 0.5) -> None:
        super().__init__(space, labels)
        check_iou_threshold(self.name, "threshold", threshold)
        self.threshold = threshold

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        found = self.match(answered, truth, self.threshold)
        return {self.name: found.f1, "detection_precision": found.precision, "detection_recall": found.recall}


class DetectionMAP(DetectionReward):
    """COCO's mean average precision on the one picture, with box spam made to count.

    Mean over labels and over the IoU thresholds 0.50, 0.55, ... 0.95, in [0, 1], by pycocotools. Boxes are equally sure
    unless `scored`, when each must carry a score or confidence. Two things differ from what peers do with pycocotools
    (see `mmrl.rewards.rules.average_precision`): boxes of equal score count as one point of the curve, so neither
    their order nor spam at the end pays, and a label that is not in the picture counts as AP 0 rather than not at all.
    Two gaps of COCO's are left, which `od_length` narrows: of a label that is not there, boxes after the first cost
    nothing; and with `scored`, neither do wrong boxes of lower score than all right ones, so that 1 is not perfect.
    """

    name = "detection_map"
    source = "COCO mAP, pycocotools"

    def __init__(self, space: Space | None = None, labels: bool = True, scored: bool = False) -> None:
        super().__init__(space, labels)
        self.scored = scored

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float:
        scores = [box.score if self.scored else 1.0 for box in answered]
        if None in scores:
            raise InvalidAnswer(f"box {scores.index(None) + 1} has no score, which scored=True asks for")
        by_label = self.labels and truth.labelled
        ours, theirs = ([plain_label(b.label) if by_label else None for b in side] for side in (answered, truth.boxes))
        boxes = truth.in_common_space([box.box for box in answered])
        return average_precision(*boxes, ours, theirs, [score for score in scores if score is not None])


class ODLength(DetectionMAP):
    """VLM-R1's odLength: mean average precision, times true boxes per answered box where there are too many.

    mAP · min(1, true / answered), in [0, 1]; mAP as in `detection_map`, whose arguments it takes. The published code
    (om-ai-lab/VLM-R1 src/open-r1-multimodal/src/open_r1/grpo_jsonl.py, odLength_reward) gives every box the score 1
    and ranks them as written, so that an imperfect list scores otherwise in another order.
    """

    name = "od_length"
    source = "VLM-R1, arXiv:2504.07615"

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float:
        spam = max(1.0, len(answered) / len(truth.boxes)) if truth.boxes else 1.0
        return super().compare(answered, truth, progress) / spam


class WeightedPrecisionRecall(DetectionReward):
    """DIP-R1's accuracy reward: a weighted mean of precision and recall.

    w·precision + (1 − w)·recall, in [0, 1], over the matches of `detection_f1`. Low w favours finding everything, as
    crowded scenes ask for. No public code of it was found to port, so w and the threshold
    are arguments.
    """

    name = "weighted_pr"
    source = "DIP-R1, arXiv:2505.23179"

    def __init__(
        self,
        space: Space | None = None,
        labels: bool = True,
        threshold: float = 0.5,
        precision_weight: float = 0.5,
    ) -> None:
        super().__init__(space, labels)
        check_iou_threshold(self.name, "threshold", threshold)
        if not 0 < precision_weight < 1:  # at the ends, leaving out or making up boxes would be free
            raise RewardError(f"{self.name}: precision_weight is {precision_weight}; it is a number between 0 and 1")
        self.threshold, self.precision_weight = threshold, precision_weight

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float:
        found = self.match(answered, truth, self.threshold)
        if found.precision == found.recall == 1:
            return 1.0
        return below_one(self.precision_weight * found.precision + (1 - self.precision_weight) * found.recall)


def check_iou_threshold(name: str, argument: str, value: float) -> None:
    """Refuse an IoU threshold that is not in (0, 1]: at 0, boxes that are apart would match."""
    if not 0 < value <= 1:
        raise RewardError(f"{name}: {argument} is {value}; it is a number above 0 and at most 1")


# Which answered thing stands for which true one: one-to-one, and the best there is (Hungarian), not greedy.
#
# Greedy matching depends on the order of the answer, and may leave out pairs that another choice would have made.


@dataclass(frozen=True)
class Matching:
    """Pairs of rows of an answer and of the truth."""

    answered: NDArray[np.intp]  # [K]
    true: NDArray[np.intp]  # [K]
    overlaps: NDArray[np.float64]  # [K]; of each pair
    answers: int  # N
    truths: int  # M

    @property
    def precision(self) -> float:
        """Share of the answer that is matched; 1 where neither side has anything, 0 where only the answer is empty."""
        return len(self.overlaps) / self.answers if self.answers else float(not self.truths)

    @property
    def recall(self) -> float:
        """Share of the truth that is matched; 1 where neither side has anything, 0 where only the truth is empty."""
        return len(self.overlaps) / self.truths if self.truths else float(not self.answers)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.answers + self.truths
        return 2 * len(self.overlaps) / both if both else 1.0


def match(
    overlap: NDArray[np.float64],  # [N, M] of answered and true, in [0, 1]
    threshold: float | NDArray[np.float64],  # scalar, or [M]: one for each true thing
    allowed: NDArray[np.bool_] | None = None,  # [N, M]; None: every pair
) -> Matching:
    """As many pairs as possible that reach the threshold, and among those ways the one of largest total overlap."""
    from scipy.optimize import linear_sum_assignment

    fit = overlap >= threshold
    if allowed is not None:
        fit &= allowed
    # A pair more outweighs any overlap, which is at most 1 a pair.
    worth = np.where(fit, min(overlap.shape) + 1 + overlap, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    kept = fit[rows, columns]
    rows, columns = rows[kept], columns[kept]
    return Matching(rows, columns, overlap[rows, columns], *overlap.shape)


# Vision-R1's criteria for detection, which tighten half-way through training.


EARLY, LATE = (0.5, 0.75), (0.75, 0.9)
"""IoU below which a box counts 0, and from which it counts 1, before and after the tightening."""


class VisionR1(DetectionReward):
    """Vision-R1's criterion reward: the mean of format, recall and precision, by rules that tighten with training.

    In [0, 1]; with ξ₁ = 0.5 and ξ₂ = 0.75 up to `tighten_at` (share of training done) and 0.75 and 0.9 after it:

    - format: 1 if every box has a label where the true ones have (an answer that is no list of boxes is invalid: 0);
    - recall: share of true boxes matched with an IoU of at least ξ₁, and 0 where that is below one half;
    - precision: sum of the matches' IoU, where ξ₂ or more counts as 1, over the number of answered boxes.

    Also given: `vision_r1_format`, `vision_r1_recall`, `vision_r1_precision`. By design a box past ξ₂ counts in full.
    Ported from jefferyZhan/Griffon Vision-R1/vision_r1/visionr1_qwen.py@499aa8b (tightened at step 1500), with the
    precision of its later EasyR1 version, as the first one divides by the matches alone and so makes box spam free.
    What else is not kept: overlap there is GIoU, matched by a cost in which pixel distances drown it; a wrong label
    costs nothing; format is turned around where there is nothing to find, so that garbage is paid; and a recall above
    0.75 becomes 1, so that an answer that leaves out one box in five is perfect.
    """

    name = "vision_r1"
    source = "Vision-R1, arXiv:2503.18013"
    scheduled = True

    def __init__(self, space: Space | None = None, labels: bool = True, tighten_at: float = 0.5) -> None:
        super().__init__(space, labels)
        if not 0 <= tighten_at <= 1:
            raise RewardError(f"{self.name}: tighten_at is {tighten_at}; it is a share of training, in [0, 1]")
        self.tighten_at = tighten_at

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> Mapping[str, float]:
        low, high = EARLY if progress <= self.tighten_at else LATE
        found = self.match(answered, truth, low)
        due = self.labels and truth.labelled
        parts = {
            "vision_r1_format": float(not due or all(box.label is not None for box in answered)),
            "vision_r1_recall": found.recall if found.recall >= 0.5 else 0.0,
            "vision_r1_precision": float(_graded(found.overlaps, high).sum() / found.answers)
            if found.answers
            else found.precision,
        }
        return {self.name: sum(parts.values()) / len(parts), **parts}


def _graded(overlaps: NDArray[np.float64], high: float) -> NDArray[np.float64]:
    return np.where(overlaps >= high, 1.0, overlaps)
