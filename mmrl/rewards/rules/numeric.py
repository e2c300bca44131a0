"""Rewards for an answer that is one number: within a tolerance, or a count."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text, final_answer, resolve_form
from mmrl.rewards.parsing.integers import parse_count
from mmrl.rewards.parsing.numbers import find_number, parse_number


class Numeric(Reward):
    """1 if the answered number is the true one within a tolerance, else 0.

    The answer x passes where |x - truth| <= max(absolute, relative * |truth|), computed exactly; both tolerances are 0
    by default, so that 0.333 is not 1/3. `references.answer` is a number or the text of one; `references.unit` ("cm",
    "%") is its unit: answers may omit it, but not name another. Without the unit "%", 12% is 0.12. Numbers are parsed
    by `mmrl.rewards.parsing.numbers`. NaN, infinity, no number, and several different numbers of which none is marked
    as the final one are invalid.
    """

    name, needs, range = "numeric", ("text", "references.answer"), (0.0, 1.0)
    version = "2"
    source = "|x − truth| <= max(absolute, relative · |truth|)"

    def __init__(self, relative: float = 0.0, absolute: float = 0.0, form: AnswerFormat = "auto") -> None:
        for what, value in (("relative", relative), ("absolute", absolute)):
            if not (math.isfinite(value) and value >= 0):
                raise RewardError(f"numeric: {what} is {value}; a tolerance is 0 or above and finite")
        # As written: the float 0.03 is below 3/100, and an answer at the bound would fail.
        self.relative, self.absolute, self.form = Fraction(str(relative)), Fraction(str(absolute)), form

    def score_one(self, item: RewardInput) -> float:
        unit = item.references.get("unit")
        if unit is not None and not isinstance(unit, str):
            raise ScoringFailed(f"references.unit is {unit!r:.60}, not a text", "reference")
        truth = true_number(item.references["answer"], unit or None)
        answered = find_number(final_answer(item.text or "", resolve_form(item, self.form)), unit or None)
        return float(abs(answered - truth) <= max(self.absolute, self.relative * abs(truth)))


class CountExact(Reward):
    """1 if the answered count is the true one, else 0.

    Counts are in digits or in English words; several different numbers are invalid unless one is marked as the answer
    (see `mmrl.rewards.parsing.integers`). `references["answer"]` is the number, or text that `parse_count` accepts.
    """

    name, needs, range = "count_exact", ("text", "references.answer"), (0.0, 1.0)
    source = "exact match"

    def score_one(self, item: RewardInput) -> float:
        truth = true_count(item.references["answer"])
        return float(parse_count(answer_text(item.text or "", resolve_form(item))) == truth)


class CountGraded(Reward):
    """1 minus the relative error of the count, at least 0.

    1 − |n − n*| / max(n*, 1) for the true count n*: 1 for n* alone, and 0 from twice n* on. Answers and references are
    parsed as by `count_exact`.
    """

    name, needs, range = "count_graded", ("text", "references.answer"), (0.0, 1.0)
    source = "relative error"

    def score_one(self, item: RewardInput) -> float:
        truth = true_count(item.references["answer"])
        return graded_count(parse_count(answer_text(item.text or "", resolve_form(item))), truth)


def true_number(answer: Any, unit: str | None = None) -> Fraction:
    """Return a reference as an exact number.

    Raises:
        ScoringFailed: the reference is not a finite number; of the kind "reference".
    """
    try:
        if isinstance(answer, str):
            return parse_number(answer, unit)
        if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
            return Fraction(str(answer))
    except InvalidAnswer:
        pass
    raise ScoringFailed(f"references.answer is {answer!r:.60}, not a finite number", "reference")


def graded_count(count: int, truth: int) -> float:
    """Return 1 for the true count, falling linearly to 0 at 0 and at twice the true count."""
    return 1.0 if count == truth else clamp_below_one(max(0.0, 1 - abs(count - truth) / max(truth, 1)))


def true_count(answer: Any) -> int:
    """Return the true count of a sample from its reference: a whole number, or text that names one.

    Raises:
        ScoringFailed: the reference is neither; of the kind "reference".
    """
    if isinstance(answer, str):
        try:
            return parse_count(answer)
        except InvalidAnswer as err:
            raise ScoringFailed(f"references['answer']: {err}", "reference") from err
    number = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
    if not number or answer < 0 or answer != int(answer):
        raise ScoringFailed(f"references['answer'] is {answer!r:.40}; expected a whole number from 0 on", "reference")
    return int(answer)
