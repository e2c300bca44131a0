"""A reward for looking at the places of a picture where the answers of a group disagree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.boxes import Box, Size, Space, check_space, convert_box, parse_boxes, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form, tag_content

GRID = 64
"""Cells of a side of the grid on which boxes are compared."""

Map = NDArray[np.float64]


class UncertainLook(GroupReward):
    """The harmonic mean of how uncertain the places are that an answer looks at, and how much of all it looks at.

    A place that a share p of the group's answers cover with a box has the variance 4p(1 - p), from 0 where all agree to
    1 where half do. Precision is the mean variance of the places that the boxes between `<look>` and `</look>` cover,
    and recall the share of all variance that lies there; so it pays to look at everything that is uncertain, and at
    nothing else. 0 for an answer without such boxes, and for all answers of a group that agrees. In [0, 1].

    The variance-guided looking reward of DIP-R1; its other two are `format` with the tags think, look and answer, and
    `weighted_pr`. What it measures the variance of is not public: boxes of a group are the suite's.
    """

    name, needs, range = "uncertain_look", ("text", "references.answer", "references.space"), (0.0, 1.0)
    source = "DIP-R1, arXiv:2505.23179"

    def __init__(self, space: Space | None = None, tag: str = "look") -> None:
        """
        Args:
            space: the coordinate space of answers; None means the reference's.
            tag: the name of the tags around the boxes that an answer looks at.
        """
        check_space(self.name, space)
        if not tag.isidentifier():
            raise RewardError(f"uncertain_look: {tag!r} is not a tag name")
        self.space, self.tag = space, tag

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score a group. Answers whose boxes cannot be read count as answers without boxes for the others."""
        seen = [attempt(self._covered_by_answer, item) for item in items]
        maps = [np.zeros((GRID, GRID)) if isinstance(each, Exception) else each for each in seen]
        share = np.mean(maps, axis=0)
        variance = 4 * share * (1 - share)
        return [
            each if isinstance(each, ScoringFailed) else attempt(self._score, item, variance)
            for item, each in zip(items, seen, strict=True)
        ]

    def _score(self, item: RewardInput, variance: Map) -> float:
        text = item.text or ""
        if f"<{self.tag}>" not in text:
            return 0.0
        looked = self._covered(tag_content(text, self.tag), item)
        inside = float((variance * looked).sum())
        if not inside:
            return 0.0
        precision, recall = inside / looked.sum(), inside / variance.sum()
        return float(2 * precision * recall / (precision + recall))

    def _covered_by_answer(self, item: RewardInput) -> Map:
        return self._covered(answer_text(item.text or "", resolve_form(item)), item)

    def _covered(self, text: str, item: RewardInput) -> Map:
        """Return [GRID, GRID]: 1 where a cell's middle lies in one of the boxes of a text, else 0."""
        truth = true_boxes(item.references, self.space)
        covered = np.zeros((GRID, GRID))
        for box in parse_boxes(text, truth.answer_space, truth.size):
            x1, y1, x2, y2 = _cells(box, truth.answer_space, truth.size)
            covered[y1:y2, x1:x2] = 1
        return covered


def _cells(box: Box, space: Space, size: Size | None) -> tuple[int, int, int, int]:
    """Return the first cell and the one behind the last whose middles lie in the box, across and down."""
    if space == "pixel" and size is None:
        raise ScoringFailed("references['size'] is missing: boxes in pixels need the size of the picture", "reference")
    shares = box if space == "norm_1" else convert_box(box, space, "norm_1", size)
    x1, y1, x2, y2 = (int(np.clip(np.ceil(share * GRID - 0.5), 0, GRID)) for share in shares)
    return x1, y1, x2, y2
