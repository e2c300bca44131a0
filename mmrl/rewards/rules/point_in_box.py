"""Whether an answered point lies where it should."""

from __future__ import annotations

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.boxes import Space, check_space, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.points import check_comparable, is_inside, parse_point


class PointInBox(Reward):
    """1 if the answered point lies in the true box or on its edge, else 0.

    `references`: `answer` [x1, y1, x2, y2], or a list of boxes of which any will do; `space` (pixel, norm_1 or
    norm_1000); and `size` [width, height] where the answer's space differs and one of them is pixel. An answer without
    a point, with two, or with one outside the picture is invalid.
    """

    name, needs, range = "point_in_box", ("text", "references.answer", "references.space"), (0.0, 1.0)
    source = "ScreenSpot's click accuracy, SeeClick, arXiv:2401.10935"

    def __init__(self, space: Space | None = None) -> None:
        """`space` is what coordinates in answers count; None: what those of the reference do."""
        check_space(self.name, space)
        self.space = space

    def score_one(self, item: RewardInput) -> float:
        truth = true_boxes(item.references, self.space)
        if not truth.boxes:
            raise ScoringFailed("references['answer'] has no box that a point could lie in", "reference")
        check_comparable(truth)
        point = parse_point(answer_text(item.text or "", resolve_form(item)), truth.answer_space, truth.size)
        return float(is_inside(point, truth))
