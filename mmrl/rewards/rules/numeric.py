"""A number against the true one, within a tolerance."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import AnswerFormat, final_answer, resolve_form
from mmrl.rewards.parsing.numbers import find_number, parse_number


class Numeric(Reward):
    """1 if the answered number is the true one within a tolerance, else 0.

    The answer x passes where |x - truth| <= max(absolute, relative * |truth|), computed exactly; both tolerances are 0
    unless given, so that 0.333 is not 1/3. `references.answer` is a number or the text of one; `references.unit`
    ("cm", "%") is what it is measured in: answers may leave it out, but not name another. Without the unit "%",
    12% is 0.12. What is read as a number is described in `mmrl.rewards.parsing.numbers`. NaN, infinity, no number and
    several different ones, of which none is marked as the final, are invalid.
    """

    name, needs, range = "numeric", ("text", "references.answer"), (0.0, 1.0)
    source = "|x − truth| <= max(absolute, relative · |truth|)"

    def __init__(self, relative: float = 0.0, absolute: float = 0.0, form: AnswerFormat = "auto") -> None:
        for what, value in (("relative", relative), ("absolute", absolute)):
            if not (math.isfinite(value) and value >= 0):
                raise RewardError(f"numeric: {what} is {value}; a tolerance is 0 or above and finite")
        self.relative, self.absolute, self.form = Fraction(relative), Fraction(absolute), form

    def score_one(self, item: RewardInput) -> float:
        unit = item.references.get("unit")
        if unit is not None and not isinstance(unit, str):
            raise ScoringFailed(f"references.unit is {unit!r:.60}, not a text", "reference")
        truth = true_number(item.references["answer"], unit or None)
        answered = find_number(final_answer(item.text or "", resolve_form(item, self.form)), unit or None)
        return float(abs(answered - truth) <= max(self.absolute, self.relative * abs(truth)))


def true_number(answer: Any, unit: str | None = None) -> Fraction:
    """A reference as a number.

    Raises:
        ScoringFailed: it is none, of the kind "reference".
    """
    try:
        if isinstance(answer, str):
            return parse_number(answer, unit)
        if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
            return Fraction(str(answer))
    except InvalidAnswer:
        pass
    raise ScoringFailed(f"references.answer is {answer!r:.60}, not a finite number", "reference")
