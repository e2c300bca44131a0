"""A reward for second attempts: the number of times that the thoughts of an answer say `wait`."""

from __future__ import annotations

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.reasoning.traces import WAIT


class SecondAttempts(Reward):
    """The share of `most` uses of the word `wait` that an answer has before its `</think>`, at most 1.

    It is easily earned and says nothing on whether the answer is right: a bait beside a reward for the answer, or, as a
    condition of it, a form that a careless writer rarely keeps.
    """

    name, needs, range = "second_attempts", ("text",), (0.0, 1.0)
    source = "uses of a word in the thoughts"

    def __init__(self, most: int = 1) -> None:
        if most < 1:
            raise RewardError(f"second_attempts: most is {most}; it is 1 or above")
        self.most = most

    def score_one(self, item: RewardInput) -> float:
        thoughts, closed, _ = (item.text or "").partition("</think>")
        return min(thoughts.count(WAIT), self.most) / self.most if closed else 0.0
