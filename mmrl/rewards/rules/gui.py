"""Whether an answered action on a screen is the right one, in the right place and with the right text."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.actions import Action, canonical_action, parse_action
from mmrl.rewards.parsing.boxes import Space, TrueBoxes, check_space, true_boxes
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.points import check_comparable, check_point, is_inside
from mmrl.rewards.rules.below_one import below_one

_DIRECTED = ("scroll", "swipe")


class GUIAction(Reward):
    """The weighted mean of: the action is right, its point lies in the true box, its text is the true one.

    `references["answer"]` is {"action": "click", "box": [x1, y1, x2, y2], "text": ...}; what it leaves out is not asked
    for, nor looked at in the answer. With a box, `references["space"]` says what its coordinates count, and `size` is
    needed where answers count otherwise. A wrong action scores 0: its point and its text are those of something else.
    So 1 needs all parts that the reference names.

    Texts are compared by words without regard to case: the F1 of the words, below 1 unless they are the same in the
    same order (`match="f1"`); or letter by letter (`match="exact"`), with case and inner spaces. The direction of a
    scroll or swipe is a text that is right or wrong. Answers are read by `mmrl.rewards.parsing.actions`. A part that is
    asked for and not there scores 0; no action or several, two points, or a point outside the picture are invalid.

    UI-R1 (arXiv:2503.21620) adds the action's and the point's reward, GUI-R1 (arXiv:2504.10458) also that of the text;
    this one divides by the weights of the parts that are asked for.
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
    ) -> None:
        """`action`, `point` and `text` are the weights of the parts; `space` is what coordinates in answers count."""
        for part, weight in (("action", action), ("point", point), ("text", text)):
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
                raise RewardError(f"gui_action: the weight of {part} is {weight!r}; it must be above 0")
        if match not in ("f1", "exact"):
            raise RewardError(f"gui_action: match is {match!r}; it is f1 or exact")
        check_space(self.name, space)
        self.action, self.point, self.text, self.match, self.space = action, point, text, match, space

    def score_one(self, item: RewardInput) -> float:
        kind, truth, true_text = self._asked_for(item.references)
        answered = parse_action(answer_text(item.text or "", resolve_form(item)))
        if answered.kind != kind:
            return 0.0
        parts = [(self.action, 1.0)]
        if truth is not None:
            parts.append((self.point, _hits(answered, truth)))
        if true_text is not None:
            parts.append((self.text, self._text_score(answered, true_text)))
        if all(score == 1 for _, score in parts):
            return 1.0
        return below_one(sum(weight * score for weight, score in parts) / sum(weight for weight, _ in parts))

    def _text_score(self, answered: Action, truth: str) -> float:
        if answered.text is None:  # which is not the empty text
            return 0.0
        if answered.kind in _DIRECTED:
            return _same_direction(answered.text, truth)
        return text_match(answered.text, truth, self.match == "exact")

    def _asked_for(self, references: Mapping[str, Any]) -> tuple[str, TrueBoxes | None, str | None]:
        answer = references["answer"]
        if not isinstance(answer, Mapping) or not isinstance(answer.get("action"), str):
            raise ScoringFailed(
                f"references['answer'] is {answer!r:.60}; {{'action': ..., 'box': ..., 'text': ...}} is due",
                "reference",
            )
        if unknown := answer.keys() - {"action", "box", "text"}:
            raise ScoringFailed(f"references['answer'] has {', '.join(sorted(map(str, unknown)))}", "reference")
        text, truth = answer.get("text"), None
        if text is not None and not isinstance(text, str):
            raise ScoringFailed(f"references['answer']['text'] is {text!r:.60}, not a text", "reference")
        if answer.get("box") is not None:
            truth = true_boxes({**references, "answer": answer["box"]}, self.space)
            if len(truth.boxes) != 1:
                raise ScoringFailed("references['answer']['box'] is not one box", "reference")
            check_comparable(truth)
        return canonical_action(answer["action"]), truth, text


def text_match(given: str, truth: str, exact: bool = False) -> float:
    """How nearly a text is the true one, in [0, 1]: 1 or 0 letter by letter, or the F1 of their words."""
    given, truth = unicodedata.normalize("NFC", given).strip(), unicodedata.normalize("NFC", truth).strip()
    if exact:
        return float(given == truth)
    words, true_words = given.casefold().split(), truth.casefold().split()
    if words == true_words:
        return 1.0
    shared = (Counter(words) & Counter(true_words)).total()
    return below_one(2 * shared / (len(words) + len(true_words)))


def _same_direction(given: str, truth: str) -> float:
    return float(given.strip().casefold() == truth.strip().casefold())


def _hits(answered: Action, truth: TrueBoxes) -> float:
    if answered.point is None:
        return 0.0
    return float(is_inside(check_point(answered.point, truth.answer_space, truth.size), truth))
