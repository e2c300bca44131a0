"""Vision-R1's criteria for detection, which tighten half-way through training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.base import RewardError
from mmrl.rewards.parsing.box_references import TrueBoxes
from mmrl.rewards.parsing.boxes import LabelledBox, Space
from mmrl.rewards.rules.detection import Detection

EARLY, LATE = (0.5, 0.75), (0.75, 0.9)
"""IoU below which a box counts 0, and from which it counts 1, before and after the tightening."""


class VisionR1(Detection):
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
