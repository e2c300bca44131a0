"""Rewards for lists of boxes: F1, mean average precision, VLM-R1's odLength, DIP-R1's weighted precision and recall.

All of them take the references `answer`, a list of {"box": [x1, y1, x2, y2], "label": ...} (or of bare boxes; [] if
there is nothing to find), `space`, and `size` if coordinates must be converted (see `mmrl.rewards.parsing.boxes`). An
empty answer is perfect if there is nothing to find. The order of boxes never matters.

Boxes are matched one-to-one by the Hungarian algorithm. Greedy matching would depend on the order of the answer, and
could leave out pairs that another choice would have made.

COCO's average precision rewards box spam in two ways: boxes behind the last hit of a ranking cost nothing, and without
scores the ranking is the order in which boxes are written; boxes of a label that the picture does not have are not
counted. `average_precision` closes both:

- boxes of equal score are one point of the curve: at every threshold the misses among them rank before the hits.
  Without scores, AP is precision × recall (recall as COCO samples it, at 101 points), in any order;
- a label that occurs only in the answer counts as one with AP 0, however many boxes have it.

If all scores differ and no label is foreign, the numbers are pycocotools' own.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, clamp_below_one
from mmrl.rewards.parsing.boxes import LabelledBox, Space, TrueBoxes, check_space, parse_labelled_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.lenient_forms import lenient_boxes, resolve_reading
from mmrl.rewards.rules.region_iou import Boxes, pairwise_iou


class DetectionReward(Reward):
    """The base class of rewards for an answer that is a list of boxes, with or without labels."""

    needs = ("text", "references.answer", "references.space")
    range = (0.0, 1.0)

    def __init__(self, space: Space | None = None, labels: bool = True) -> None:
        """Check the arguments.

        Args:
            space: the coordinate space of answers; None means the reference's.
            labels: match boxes of the same label only, if the true boxes have labels. Labels agree if they differ only
                in case and white space; look-alike letters of other scripts differ.
        """
        check_space(self.name, space)
        self.space, self.labels = space, labels

    @abstractmethod
    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float | Mapping[str, float]:
        """Return the score of the answered boxes; `progress` is the completed fraction of training, in [0, 1]."""

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """Return the score at the start of training."""
        return self.score_in(item, RewardContext())

    def score_in(self, item: RewardInput, context: RewardContext) -> float | Mapping[str, float]:
        truth = true_boxes(item.references, self.space)
        answer = answer_text(item.text or "", resolve_form(item))
        if resolve_reading(item) == "lenient":
            answer = lenient_boxes(answer)
        answered = self.parse(answer, truth)
        return self.compare(answered, truth, context.progress)

    def parse(self, text: str, truth: TrueBoxes) -> list[LabelledBox]:
        """Return the boxes in a final answer."""
        return parse_labelled_boxes(text, truth.answer_space, truth.size)

    def match(self, answered: list[LabelledBox], truth: TrueBoxes, threshold: float | NDArray[np.float64]) -> Matching:
        """Return the best one-to-one matching of boxes whose IoU reaches `threshold` and whose labels agree."""
        overlap = pairwise_iou(*truth.in_common_space([box.box for box in answered]))
        return match(overlap, threshold, self.agree(answered, truth))

    def agree(self, answered: Sequence[LabelledBox], truth: TrueBoxes) -> NDArray[np.bool_] | None:
        """Return [N, M], True for pairs with the same label; None if labels do not matter."""
        if not self.labels or not truth.labelled:
            return None
        ours, theirs = (np.array([plain_label(b.label) for b in side], object) for side in (answered, truth.boxes))
        same: NDArray[np.bool_] = ours[:, None] == theirs[None, :]
        return same


def plain_label(label: str | None) -> str | None:
    """Return the label in the form in which labels are compared: NFC, white space collapsed, case folded."""
    return None if label is None else " ".join(unicodedata.normalize("NFC", label).split()).casefold()


class DetectionF1(DetectionReward):
    """F1 of the answered boxes: those that match a true box, against all on both sides.

    2·matches / (answered + true), in [0, 1]; matches have an IoU of at least `threshold` and, with `labels`, the same
    label, and are as many as one-to-one matching allows. Also returns `detection_precision` and `detection_recall`.
    The score is 1 if every true box is found and there is no other box; a box past the threshold counts in full.
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
    """COCO's mean average precision on the one picture, with a penalty for box spam.

    Mean over labels and over the IoU thresholds 0.50, 0.55, ... 0.95, in [0, 1], by pycocotools. All boxes have equal
    confidence unless `scored`, when each must have a score or confidence. `average_precision` differs from plain
    pycocotools in two ways: boxes of equal score count as one point of the curve, so neither their order nor spam at
    the end pays, and a label that is not in the picture counts as AP 0 rather than not at all. COCO leaves two gaps,
    which `od_length` narrows: boxes of an absent label cost nothing after the first; and with `scored`, wrong boxes of
    lower score than all right ones cost nothing, so that 1 does not mean perfect.

    With `published` the number is pycocotools' own, as VLM-R1 has it: boxes of equal score rank as they are written, so
    that boxes behind the last hit cost nothing; and boxes of a label that the picture lacks are left out.
    """

    name = "detection_map"
    source = "COCO mAP, pycocotools"

    def __init__(
        self, space: Space | None = None, labels: bool = True, scored: bool = False, published: bool = False
    ) -> None:
        super().__init__(space, labels)
        self.scored, self.published = scored, published

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float:
        scores = [box.score if self.scored else 1.0 for box in answered]
        if None in scores:
            raise InvalidAnswer(f"box {scores.index(None) + 1} has no score, which scored=True requires")
        by_label = self.labels and truth.labelled
        ours, theirs = ([plain_label(b.label) if by_label else None for b in side] for side in (answered, truth.boxes))
        boxes = truth.in_common_space([box.box for box in answered])
        known = [score for score in scores if score is not None]
        return average_precision(*boxes, ours, theirs, known, as_written=self.published)


class ODLength(DetectionMAP):
    """VLM-R1's odLength: mean average precision, times true boxes per answered box if there are too many.

    mAP · min(1, true / answered), in [0, 1]; mAP as in `detection_map`, whose arguments it takes. The published code
    (om-ai-lab/VLM-R1 src/open-r1-multimodal/src/open_r1/grpo_jsonl.py, odLength_reward) gives every box the score 1
    and ranks boxes as written, so that the score of an imperfect list depends on its order: `published` does the same.
    """

    name = "od_length"
    source = "VLM-R1, arXiv:2504.07615"

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float:
        spam = max(1.0, len(answered) / len(truth.boxes)) if truth.boxes else 1.0
        return super().compare(answered, truth, progress) / spam


class WeightedPrecisionRecall(DetectionReward):
    """DIP-R1's accuracy reward: a weighted mean of precision and recall.

    w·precision + (1 − w)·recall, in [0, 1], over the matches of `detection_f1`. A low w favours finding everything, as
    in crowded scenes. No public code was found, so w and the threshold are arguments.
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
        if not 0 < precision_weight < 1:  # at 0 made-up boxes would be free, at 1 left-out boxes
            raise RewardError(f"{self.name}: precision_weight is {precision_weight}; it is a number between 0 and 1")
        self.threshold, self.precision_weight = threshold, precision_weight

    def compare(self, answered: list[LabelledBox], truth: TrueBoxes, progress: float) -> float:
        found = self.match(answered, truth, self.threshold)
        if found.precision == found.recall == 1:
            return 1.0
        return clamp_below_one(self.precision_weight * found.precision + (1 - self.precision_weight) * found.recall)


def check_iou_threshold(name: str, argument: str, value: float) -> None:
    """Raise RewardError unless an IoU threshold is in (0, 1]: at 0, boxes that do not overlap would match."""
    if not 0 < value <= 1:
        raise RewardError(f"{name}: {argument} is {value}; it is a number above 0 and at most 1")


@dataclass(frozen=True)
class Matching:
    """A one-to-one matching: pairs of row numbers of the answered and of the true boxes."""

    answered: NDArray[np.intp]  # [K]
    true: NDArray[np.intp]  # [K]
    overlaps: NDArray[np.float64]  # [K]; IoU of each pair
    answers: int  # N, the number of answered boxes
    truths: int  # M, the number of true boxes

    @property
    def precision(self) -> float:
        """The matched fraction of the answer; 1 if both sides are empty, 0 if only the answer is."""
        return len(self.overlaps) / self.answers if self.answers else float(not self.truths)

    @property
    def recall(self) -> float:
        """The matched fraction of the truth; 1 if both sides are empty, 0 if only the truth is."""
        return len(self.overlaps) / self.truths if self.truths else float(not self.answers)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.answers + self.truths
        return 2 * len(self.overlaps) / both if both else 1.0


def match(
    overlap: NDArray[np.float64],  # [N, M] of answered and true, in [0, 1]
    threshold: float | NDArray[np.float64],  # scalar, or [M]: one for each true box
    allowed: NDArray[np.bool_] | None = None,  # [N, M]; None: every pair
) -> Matching:
    """Return the matching with the most pairs that reach the threshold, and among those the largest total overlap."""
    from scipy.optimize import linear_sum_assignment

    fit = overlap >= threshold
    if allowed is not None:
        fit &= allowed
    # One more pair outweighs any overlap, which is at most 1 per pair.
    worth = np.where(fit, min(overlap.shape) + 1 + overlap, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    kept = fit[rows, columns]
    rows, columns = rows[kept], columns[kept]
    return Matching(rows, columns, overlap[rows, columns], *overlap.shape)


def average_precision(
    answered: Boxes,  # [N, 4]
    true: Boxes,  # [M, 4]
    answered_labels: Sequence[str | None],  # [N]
    true_labels: Sequence[str | None],  # [M]
    scores: Sequence[float],  # [N]
    as_written: bool = False,
) -> float:
    """Return the mean average precision over labels and the IoU thresholds 0.50, 0.55, ... 0.95, in [0, 1].

    1 if both sides are empty, 0 if one of them is. `as_written`: as pycocotools has it, where boxes of equal score rank
    in the order of the answer, and boxes of other labels than the true ones do not count.
    """
    if not len(true) or not len(answered):
        return float(len(true) == len(answered))
    if as_written:
        return _plain_average_precision(answered, true, answered_labels, true_labels, scores)
    labels = {label: number for number, label in enumerate(dict.fromkeys([*true_labels, *answered_labels]), 1)}
    truth = [_annotation(box, labels[label]) for box, label in zip(true, true_labels, strict=True)]
    best = pairwise_iou(answered, true).max(axis=1)
    # pycocotools matches greedily in this order, which does not depend on how the answer was written.
    order = sorted(range(len(answered)), key=lambda i: (-scores[i], -best[i], answered[i].tolist()))
    found = [_annotation(answered[i], labels[answered_labels[i]], scores[i]) for i in order]
    precision = _precision(truth, found, list(labels.values()))
    known = set(true_labels)
    by_label = [precision[:, :, row].mean() if label in known else 0.0 for row, label in enumerate(labels)]
    return float(np.mean(by_label))


def _plain_average_precision(
    answered: Boxes,
    true: Boxes,
    answered_labels: Sequence[str | None],
    true_labels: Sequence[str | None],
    scores: Sequence[float],
) -> float:
    labels = {label: number for number, label in enumerate(dict.fromkeys(true_labels), 1)}
    truth = [_annotation(box, labels[label]) for box, label in zip(true, true_labels, strict=True)]
    written = zip(answered, answered_labels, scores, strict=True)
    found = [_annotation(box, labels[label], score) for box, label, score in written if label in labels]
    return float(_precision(truth, found, list(labels.values()), as_written=True).mean()) if found else 0.0


def _annotation(box: Boxes, category: int, score: float = 1.0) -> dict[str, Any]:
    x1, y1, x2, y2 = box.tolist()
    area = (x2 - x1) * (y2 - y1)
    bbox = [x1, y1, x2 - x1, y2 - y1]
    return {"image_id": 1, "category_id": category, "bbox": bbox, "area": area, "iscrowd": 0, "score": score}


def _precision(
    truth: list[dict[str, Any]], found: list[dict[str, Any]], categories: list[int], as_written: bool = False
) -> Boxes:
    """Return the interpolated precision [thresholds, recalls, categories]."""
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
    for one in () if as_written else filter(None, run.evalImgs):
        # Ties: within equal scores, which are adjacent, misses come first, separately at each threshold.
        order = np.lexsort((one["dtMatches"] > 0, np.broadcast_to(-np.array(one["dtScores"]), one["dtMatches"].shape)))
        one["dtMatches"] = np.take_along_axis(one["dtMatches"], order, axis=1)
    suppress_output(COCOeval.accumulate)(run)
    precision: Boxes = run.eval["precision"][:, :, :, 0, 0]
    return precision


def suppress_output(method: Any) -> Any:
    """Return the same function with a `print` that does nothing.

    pycocotools has no option for it, and redirecting `sys.stdout` would affect every thread of the process.
    """
    silent = {**method.__globals__, "print": lambda *_: None}
    return FunctionType(method.__code__, silent, method.__name__, method.__defaults__, method.__closure__)
