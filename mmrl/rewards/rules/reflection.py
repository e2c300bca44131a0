"""Rewards for several attempts at one question, in the environment `attempts`: their gain, and reflection on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.rules.lengths import answer_length

EFFECTS = {(False, True): 0.5, (True, True): 0.25, (False, False): 0.0, (True, False): -0.25}
"""The effect of reflection by (first attempt right, last attempt right)."""


class AttemptGain(Reward):
    """The value of the last attempt less that of the first: above 0 where trying again pays."""

    name, needs, range = "attempt_gain", ("outcome",), (-1.0, 1.0)
    source = "delta(t1, t2) of SCoRe, arXiv:2409.12917"

    def score_one(self, item: RewardInput) -> float:
        values = attempt_values(item)
        return values[-1] - values[0]


class ReflectionEffect(Reward):
    """The effect of trying again: 0.5 corrected, 0.25 kept right, 0 left wrong, -0.25 spoilt.

    An attempt is right if it is worth `right_at` or more; the first one is compared with the last.
    """

    name, needs, range = "reflection_effect", ("outcome",), (-0.25, 0.5)
    source = "SRPO, arXiv:2506.01713"

    def __init__(self, right_at: float = 1.0) -> None:
        if not 0 < right_at <= 1:
            raise RewardError(f"reflection_effect: right_at is {right_at}; it lies above 0 and is at most 1")
        self.right_at = right_at

    def score_one(self, item: RewardInput) -> float:
        values = attempt_values(item)
        return EFFECTS[values[0] >= self.right_at, values[-1] >= self.right_at] if len(values) > 1 else 0.0


class ReflectionLength(Reward):
    """Closeness of the last turn's length to a target: exp(-((n - target) / (most - target))^2).

    1 at `target`, 0.37 at `most`. Lengths are of the turn with its thoughts.
    """

    name, needs, range = "reflection_length", ("text", "outcome"), (0.0, 1.0)
    source = "SRPO, arXiv:2506.01713"

    def __init__(self, target: int, most: int, unit: Literal["words", "characters"] = "words") -> None:
        if not 0 < target < most:
            raise RewardError(f"reflection_length: target {target} and most {most}; 0 < target < most")
        if unit not in ("words", "characters"):
            raise RewardError(f"reflection_length: unit is {unit!r}; it is words or characters")
        self.target, self.most, self.unit = target, most, unit

    def score_one(self, item: RewardInput) -> float:
        if len(attempt_values(item)) < 2:
            return 0.0
        excess = (answer_length(item, self.unit) - self.target) / (self.most - self.target)
        return math.exp(-(excess**2))


def attempt_values(item: RewardInput) -> Sequence[float]:
    """Return what the attempts of an episode are worth, in order; at least one.

    Raises:
        ScoringFailed: the outcome has none.
    """
    values = item.outcome.get("attempts")
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ScoringFailed("the outcome has no `attempts`: set environment: {name: attempts}", "missing")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ScoringFailed(f"the outcome's attempts are {values!r:.60}, not numbers", "reference")
    return values
