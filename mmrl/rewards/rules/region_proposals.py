"""`RegionProposals`: the regions of a picture that are worth a closer look, after ACTIVE-O3 (arXiv:2505.21457).

One answer names up to `most` regions at once. Each would be cut out and enlarged for whoever does the task. The score
is a weighted mean of the task's part and of two heuristic parts:

    recall     the share of the true boxes that lie in a region, whole and enlarged `zoom` times or more: what a reader
               that needs this scale, and makes no mistakes, would find in the regions
    valid      the share of the `most` regions that are well chosen: of a permitted area, and not over an earlier one
    coverage   the share of the area of the true boxes that the regions cover, at any scale
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.boxes import Space, parse_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.rules.region_iou import Boxes, SpaceReward, pairwise_iou

DEFAULT_WEIGHTS: Mapping[str, float] = {"recall": 0.6, "valid": 0.2, "coverage": 0.2}


class RegionProposals(SpaceReward):
    """The quality of up to k regions that are to show all small things: recall at a scale, validity, coverage.

    A weighted mean in [0, 1], with each part as a further score. Regions after the first `most` count for nothing. An
    answer without well-formed boxes is invalid. References as for `detection_f1`, with at least one true box.
    """

    name, range, version = "region_proposals", (0.0, 1.0), "2"
    needs = ("text", "references.answer", "references.space")
    source = "ACTIVE-O3, arXiv:2505.21457"

    def __init__(
        self,
        space: Space | None = None,
        most: int = 3,
        zoom: float = 2.0,
        smallest: float = 0.01,
        overlap: float = 0.3,
        weights: Mapping[str, float] = DEFAULT_WEIGHTS,
    ) -> None:
        """
        Args:
            space: the coordinate space of answers; None means the reference's.
            most: regions that count.
            zoom: the enlargement that the task needs: the picture's longer side over the region's.
            smallest: the smallest area of a valid region, as a share of the picture; the largest is that of `zoom`.
            overlap: the IoU with an earlier region above which a region is not valid.
            weights: of the parts `recall`, `valid` and `coverage` in the mean; one that is left out has none.
        """
        super().__init__(space)
        if most < 1 or not zoom >= 1 or not 0 <= smallest < 1 / zoom**2 or not 0 <= overlap <= 1:
            raise RewardError(
                f"{self.name}: expected most ({most}) and zoom ({zoom}) of at least 1, smallest ({smallest}) below "
                f"1 / zoom², and overlap ({overlap}) in [0, 1]"
            )
        total = sum(weights.values())
        if (
            not set(weights) <= set(DEFAULT_WEIGHTS)
            or min(weights.values(), default=-1) < 0
            or not 0 < total < math.inf
        ):
            raise RewardError(
                f"{self.name}: weights are numbers from 0 on for recall, valid and coverage, and not all 0: "
                f"got {dict(weights)!r:.80}"
            )
        self.most, self.zoom, self.smallest, self.overlap = most, zoom, smallest, overlap
        self.weights = {part: weights.get(part, 0.0) / total for part in DEFAULT_WEIGHTS}

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        truth = true_boxes(item.references, self.space)
        if not truth.boxes:
            raise ScoringFailed("references['answer'] has no boxes, so there is nothing to look for", "reference")
        answered = parse_boxes(answer_text(item.text or "", resolve_form(item)), truth.answer_space, truth.size)
        regions, things = truth.in_common_space(answered[: self.most])
        return self.parts(regions, things, truth.common_size)

    def parts(self, regions: Boxes, things: Boxes, size: tuple[float, float]) -> dict[str, float]:
        """Return the mean and its parts, of regions [K, 4] and things [M, 4] in a picture of a width and height."""
        parts = {
            "recall": float(found_things(regions, things, max(size) / self.zoom).mean()),
            "valid": float(self.valid(regions, size).sum()) / self.most,
            "coverage": covered_share(regions, things),
        }
        return {self.name: sum(self.weights[part] * value for part, value in parts.items()), **parts}

    def valid(self, regions: Boxes, size: tuple[float, float]) -> NDArray[np.bool_]:
        """Return [K], True for regions of a permitted area that do not lie over an earlier one."""
        areas = (regions[:, 2] - regions[:, 0]) * (regions[:, 3] - regions[:, 1]) / (size[0] * size[1])
        earlier = np.tril(pairwise_iou(regions, regions), -1).max(axis=1, initial=0.0)
        fit: NDArray[np.bool_] = (areas >= self.smallest) & (areas <= 1 / self.zoom**2) & (earlier <= self.overlap)
        return fit


def found_things(regions: Boxes, things: Boxes, longest: float) -> NDArray[np.bool_]:
    """Return [M], True for things that lie whole in a region whose longer side is at most `longest`."""
    inside = (regions[:, None, :2] <= things[None, :, :2]).all(-1) & (regions[:, None, 2:] >= things[None, :, 2:]).all(
        -1
    )
    sides = np.maximum(regions[:, 2] - regions[:, 0], regions[:, 3] - regions[:, 1])
    return np.asarray((inside & (sides <= longest)[:, None]).any(axis=0), np.bool_)


def covered_share(regions: Boxes, things: Boxes) -> float:
    """Return the share of the area of things that the union of regions covers, each thing counted by itself."""
    total = float(((things[:, 2] - things[:, 0]) * (things[:, 3] - things[:, 1])).sum())
    return sum(_covered(regions, thing) for thing in things) / total


def _covered(regions: Boxes, thing: NDArray[np.float64]) -> float:
    """Return the area of a box [4] that boxes [K, 4] cover together."""
    low = np.maximum(regions[:, :2], thing[:2])
    high = np.minimum(regions[:, 2:], thing[2:])
    kept = (high > low).all(axis=1)
    low, high = low[kept], high[kept]
    if not len(low):
        return 0.0
    xs, ys = (np.unique(np.concatenate([low[:, axis], high[:, axis]])) for axis in range(2))
    across = (low[:, None, 0] <= xs[None, :-1]) & (high[:, None, 0] >= xs[None, 1:])  # [K, columns]
    down = (low[:, None, 1] <= ys[None, :-1]) & (high[:, None, 1] >= ys[None, 1:])  # [K, rows]
    cells = (across[:, :, None] & down[:, None, :]).any(axis=0)
    return float((cells * np.diff(xs)[:, None] * np.diff(ys)[None, :]).sum())
