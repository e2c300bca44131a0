"""Rewards that compare one answered box with one true box: IoU, GIoU, DIoU, CIoU.

The pairwise functions take boxes as rows x1, y1, x2, y2 of float64 arrays [N, 4] and [M, 4], with x1 < x2 and y1 < y2,
and return [N, M]. Equal boxes have exactly 1, and different boxes less than 1 even as float32.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import LARGEST_BELOW_ONE, RewardInput
from mmrl.rewards.parsing.boxes import Space, check_space, parse_box, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form

Boxes = NDArray[np.float64]


def pairwise_iou(a: Boxes, b: Boxes) -> Boxes:
    """Return the intersection over union, in [0, 1]."""
    return _exact(_areas(a, b)[0], a, b)


def pairwise_giou(a: Boxes, b: Boxes) -> Boxes:
    """Return the generalised IoU, in (-1, 1] (arXiv:1902.09630): IoU − (|C| − |union|) / |C|.

    C is the smallest box around both. Unlike IoU it distinguishes near from far boxes that do not overlap.
    """
    iou, union = _areas(a, b)
    around = np.prod(_around(a, b), axis=-1)
    return _exact(iou - (around - union) / around, a, b)


def pairwise_diou(a: Boxes, b: Boxes) -> Boxes:
    """Return the distance IoU, in (-1, 1] (arXiv:1911.08287): IoU − d² / c².

    d is the distance of the centres, c the diagonal of the smallest box around both.
    """
    return _exact(_areas(a, b)[0] - _distance(a, b), a, b)


def pairwise_ciou(a: Boxes, b: Boxes) -> Boxes:
    """Return the complete IoU, in (-1.5, 1] (arXiv:1911.08287): DIoU − αv.

    v = 4/π² (atan(w/h) − atan(w'/h'))² compares the shapes, α = v / (1 − IoU + v).
    """
    iou, _ = _areas(a, b)
    shapes = [np.arctan2(box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]) for box in (a, b)]
    v = 4 / math.pi**2 * (shapes[0][:, None] - shapes[1][None, :]) ** 2
    alpha = np.divide(v, 1 - iou + v, out=np.zeros_like(v), where=v > 0)
    return _exact(iou - _distance(a, b) - alpha * v, a, b)


def _areas(a: Boxes, b: Boxes) -> tuple[Boxes, Boxes]:
    """Return the IoU and the area of the union."""
    overlap = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    both = np.prod(overlap.clip(0), axis=-1)
    union = np.prod(a[:, 2:] - a[:, :2], axis=-1)[:, None] + np.prod(b[:, 2:] - b[:, :2], axis=-1)[None, :] - both
    return both / union, union


def _around(a: Boxes, b: Boxes) -> Boxes:
    """Return [N, M, 2], the width and height of the smallest box around both."""
    around: Boxes = np.maximum(a[:, None, 2:], b[None, :, 2:]) - np.minimum(a[:, None, :2], b[None, :, :2])
    return around


def _distance(a: Boxes, b: Boxes) -> Boxes:
    """Return the squared distance of the centres over the squared diagonal of the smallest box around both."""
    apart = (a[:, None, :2] + a[:, None, 2:] - b[None, :, :2] - b[None, :, 2:]) / 2
    relative: Boxes = (apart**2).sum(-1) / (_around(a, b) ** 2).sum(-1)
    return relative


def _exact(values: Boxes, a: Boxes, b: Boxes) -> Boxes:
    equal = (a[:, None, :] == b[None, :, :]).all(axis=-1)
    return np.where(equal, 1.0, np.minimum(values, LARGEST_BELOW_ONE))


class _OneBox(Reward):
    """The base class of rewards for an answer that is one box. Malformed boxes are invalid."""

    needs = ("text", "references.answer", "references.space")

    def __init__(self, space: Space | None = None) -> None:
        """Set the coordinate space of answers; None means the reference's."""
        check_space(self.name, space)
        self.space = space

    @staticmethod
    @abstractmethod
    def overlap(a: Boxes, b: Boxes) -> Boxes:
        """Return the overlap [N, M] of boxes [N, 4] and [M, 4]."""

    def score_one(self, item: RewardInput) -> float:
        truth = true_boxes(item.references, self.space)
        if len(truth.boxes) != 1:
            raise ScoringFailed(f"references['answer'] has {len(truth.boxes)} boxes, not one", "reference")
        box = parse_box(answer_text(item.text or "", resolve_form(item)), truth.answer_space, truth.size)
        return float(self.overlap(*truth.in_common_space([box]))[0, 0])


class BoxIoU(_OneBox):
    """Intersection over union of the answered and the true box.

    In [0, 1]; 1 for the true box alone, up to float32. `references`: `answer` [x1, y1, x2, y2], `space` (pixel, norm_1
    or norm_1000), and `size` [width, height] if the answer's space differs and one of them is pixel. An answer
    without a box, or with two, or with swapped corners is invalid.
    """

    name, range = "box_iou", (0.0, 1.0)
    source = "Jaccard index"
    overlap = staticmethod(pairwise_iou)


class BoxGIoU(_OneBox):
    """Generalised IoU: also grades boxes that do not overlap.

    IoU − (|C| − |union|) / |C| with C the smallest box around both, in (-1, 1]. References as for `box_iou`. Swapped
    corners are invalid: the formula would give 1 to some of them, and sorting them would hide the mistake.
    """

    name, range = "box_giou", (-1.0, 1.0)
    source = "GIoU, arXiv:1902.09630"
    overlap = staticmethod(pairwise_giou)


class BoxDIoU(_OneBox):
    """Distance IoU: IoU less the squared distance of the centres, relative to the box around both.

    In (-1, 1]. References as for `box_iou`; distances are in pixels if `size` is known, else in the reference's
    space, in which a picture counts as square.
    """

    name, range = "box_diou", (-1.0, 1.0)
    source = "DIoU, arXiv:1911.08287"
    overlap = staticmethod(pairwise_diou)


class BoxCIoU(_OneBox):
    """Complete IoU: distance IoU less a penalty for another shape.

    In (-1.5, 1]. References and distances as for `box_diou`.
    """

    name, range = "box_ciou", (-1.5, 1.0)
    source = "CIoU, arXiv:1911.08287"
    overlap = staticmethod(pairwise_ciou)
