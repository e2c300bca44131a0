"""A reward for what the episode of an environment came to."""

from __future__ import annotations

import math

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput


class EpisodeOutcome(Reward):
    """The value of one key of the episode's outcome, such as `success`; true is 1 and false is 0."""

    name, needs, range = "outcome", ("outcome",), (0.0, 1.0)
    source = "the environment of the run"

    def __init__(self, key: str = "success") -> None:
        """
        Args:
            key: of the outcome, whose value is a truth value or a number in [0, 1].
        """
        self.key = key

    def score_one(self, item: RewardInput) -> float:
        if self.key not in item.outcome:
            known = ", ".join(sorted(item.outcome)) or "nothing"
            raise ScoringFailed(f"the outcome has no {self.key!r}: it has {known}", "missing")
        value = item.outcome[self.key]
        if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
            raise ScoringFailed(f"the outcome's {self.key!r} is {value!r:.60}, not a number in [0, 1]", "out_of_range")
        return float(value)
