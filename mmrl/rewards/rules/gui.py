"""Rewards for graphical user interfaces: an action with its place and text, and a click in a box."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.actions import Action, canonical_action, parse_action
from mmrl.rewards.parsing.boxes import Space, TrueBoxes, check_space, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.lenient_forms import lenient_point, resolve_reading
from mmrl.rewards.parsing.points import check_comparable, check_point, is_inside, parse_point
from mmrl.rewards.rules.region_iou import SpaceReward

_DIRECTED = ("scroll", "swipe")


class GUIAction(Reward):
    """The weighted mean of: the action is right, its point lies in the true box, its text is the true one.

    `references["answer"]` is {"action": "click", "box": [x1, y1, x2, y2], "text": ...}; parts that it leaves out are
    not required, and ignored in the answer. With a box, `references["space"]` is its coordinate space, and `size` is
    required if answers are in another space. A wrong action scores 0, since its point and text belong to something
    else. So 1 requires all parts that the reference names.

    Texts are compared by the F1 of their case-folded words, below 1 unless they are the same in the same order
    (`match="f1"`); or letter by letter (`match="exact"`), with case and inner spaces. The direction of a scroll or
    swipe is a text that is right or wrong. Answers are parsed by `mmrl.rewards.parsing.actions`. A part that is
    required and missing scores 0; no action or several, two points, or a point outside the picture are invalid.

    UI-R1 (arXiv:2503.21620) adds the action's and the point's reward, GUI-R1 (arXiv:2504.10458) also that of the text;
    this reward divides by the weights of the required parts. With `published`, as in both papers, each part counts by
    itself: the point and the text of a wrong action do, too.

    An action may have any of its names: `tap` is a `click`. Without `aliases` it must be called as in the reference.
    """

    name, needs, range = "gui_action", ("text", "references.answer"), (0.0, 1.0)
    source = "UI-R1, arXiv:2503.21620; GUI-R1, arXiv:2504.10458"

    def __init__(
        self,
        action: float = 1.0,
        point: float = 1.0,
        text: float = 1.0,
        match: Literal["f1", "exact"] = "f1",
        space: Space | None = None,
        published: bool = False,
        aliases: bool = True,
    ) -> None:
        """Check the arguments.

        Args:
            action: the weight of the action.
            point: the weight of the point.
            text: the weight of the text.
            match: "f1" compares texts by words, "exact" letter by letter.
            space: the coordinate space of answers; None means the reference's.
            published: whether the point and the text of a wrong action count.
            aliases: whether other names of the action count.
        """
        for part, weight in (("action", action), ("point", point), ("text", text)):
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
                raise RewardError(f"gui_action: the weight of {part} is {weight!r}; it must be above 0")
        if match not in ("f1", "exact"):
            raise RewardError(f"gui_action: match is {match!r}; it is f1 or exact")
        check_space(self.name, space)
        self.action, self.point, self.text, self.match, self.space = action, point, text, match, space
        self.published, self.aliases = published, aliases

    def score_one(self, item: RewardInput) -> float:
        name, truth, true_text = self._required_parts(item.references)
        kind = canonical_action(name)
        answered = parse_action(answer_text(item.text or "", resolve_form(item)))
        right = answered.kind == kind if self.aliases else answered.name == name
        if not right and not self.published:
            return 0.0
        parts = [(self.action, float(right))]
        if truth is not None:
            parts.append((self.point, _hits(answered, truth)))
        if true_text is not None:
            parts.append((self.text, self._text_score(answered, kind, true_text)))
        if all(score == 1 for _, score in parts):
            return 1.0
        return clamp_below_one(sum(weight * score for weight, score in parts) / sum(weight for weight, _ in parts))

    def _text_score(self, answered: Action, kind: str, truth: str) -> float:
        if answered.text is None:  # not the same as an empty text
            return 0.0
        if kind in _DIRECTED:
            return _same_direction(answered.text, truth)
        return text_match(answered.text, truth, self.match == "exact")

    def _required_parts(self, references: Mapping[str, Any]) -> tuple[str, TrueBoxes | None, str | None]:
        answer = references["answer"]
        if not isinstance(answer, Mapping) or not isinstance(answer.get("action"), str):
            raise ScoringFailed(
                f"references['answer'] is {answer!r:.60}; expected {{'action': ..., 'box': ..., 'text': ...}}",
                "reference",
            )
        if unknown := answer.keys() - {"action", "box", "text"}:
            raise ScoringFailed(
                f"references['answer'] has the keys {', '.join(sorted(map(str, unknown)))}", "reference"
            )
        text, truth = answer.get("text"), None
        if text is not None and not isinstance(text, str):
            raise ScoringFailed(f"references['answer']['text'] is {text!r:.60}, not a text", "reference")
        if answer.get("box") is not None:
            truth = true_boxes({**references, "answer": answer["box"]}, self.space)
            if len(truth.boxes) != 1:
                raise ScoringFailed("references['answer']['box'] is not one box", "reference")
            check_comparable(truth)
        return answer["action"], truth, text


class PointInBox(SpaceReward):
    """1 if the answered point lies in the true box or on its edge, else 0.

    `references`: `answer` [x1, y1, x2, y2], or a list of boxes of which any counts; `space` (pixel, norm_1 or
    norm_1000); and `size` [width, height] if the answer's space differs and one of them is pixel. An answer without a
    point, with two, or with one outside the picture is invalid.
    """

    name, needs, range = "point_in_box", ("text", "references.answer", "references.space"), (0.0, 1.0)
    source = "ScreenSpot's click accuracy, SeeClick, arXiv:2401.10935"

    def score_one(self, item: RewardInput) -> float:
        truth = true_boxes(item.references, self.space)
        if not truth.boxes:
            raise ScoringFailed("references['answer'] has no box that a point could lie in", "reference")
        check_comparable(truth)
        answer = answer_text(item.text or "", resolve_form(item))
        if resolve_reading(item, self.reading) == "lenient":
            answer = lenient_point(answer, truth.answer_space, truth.size)
        point = parse_point(answer, truth.answer_space, truth.size)
        return float(is_inside(point, truth))


def text_match(answered: str, truth: str, exact: bool = False) -> float:
    """Return the similarity of a text to the true one, in [0, 1]: the F1 of their words, or 1 or 0 if `exact`."""
    answered, truth = unicodedata.normalize("NFC", answered).strip(), unicodedata.normalize("NFC", truth).strip()
    if exact:
        return float(answered == truth)
    words, true_words = answered.casefold().split(), truth.casefold().split()
    if words == true_words:
        return 1.0
    shared = (Counter(words) & Counter(true_words)).total()
    return clamp_below_one(2 * shared / (len(words) + len(true_words)))


def _same_direction(answered: str, truth: str) -> float:
    return float(answered.strip().casefold() == truth.strip().casefold())


def _hits(answered: Action, truth: TrueBoxes) -> float:
    if answered.point is None:
        return 0.0
    return float(is_inside(check_point(answered.point, truth.answer_space, truth.size), truth))
