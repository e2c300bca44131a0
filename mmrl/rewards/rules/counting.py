"""Whether the number of things is right, and how nearly."""

from __future__ import annotations

import math
from typing import Any

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.counts import parse_count
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.rules.below_one import below_one


class CountExact(Reward):
    """1 if the answered count is the true one, else 0.

    Read in digits or in English words; several different numbers are invalid unless one is said to be the answer (see
    `mmrl.rewards.parsing.counts`). `references["answer"]` is the number, or text that `parse_count` reads.
    """

    name, needs, range = "count_exact", ("text", "references.answer"), (0.0, 1.0)
    source = "exact match"

    def score_one(self, item: RewardInput) -> float:
        truth = true_count(item.references["answer"])
        return float(parse_count(answer_text(item.text or "", resolve_form(item))) == truth)


class CountGraded(Reward):
    """One less the relative error of the count, no less than 0.

    1 − |n − n*| / max(n*, 1) for the true count n*: 1 for it alone, and 0 from twice as many on. Answers and references
    are read as by `count_exact`.
    """

    name, needs, range = "count_graded", ("text", "references.answer"), (0.0, 1.0)
    source = "relative error"

    def score_one(self, item: RewardInput) -> float:
        truth = true_count(item.references["answer"])
        return graded_count(parse_count(answer_text(item.text or "", resolve_form(item))), truth)


def graded_count(count: int, truth: int) -> float:
    """1 for the true count, falling in a line to 0 at nothing and at twice as many."""
    return 1.0 if count == truth else below_one(max(0.0, 1 - abs(count - truth) / max(truth, 1)))


def true_count(given: Any) -> int:
    """The true count of a sample: a whole number, or text that names one.

    Raises:
        ScoringFailed: it is neither.
    """
    if isinstance(given, str):
        try:
            return parse_count(given)
        except InvalidAnswer as err:
            raise ScoringFailed(f"references['answer']: {err}", "reference") from err
    number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not number or given < 0 or given != int(given):
        raise ScoringFailed(f"references['answer'] is {given!r:.40}; a whole number from 0 on is due", "reference")
    return int(given)
