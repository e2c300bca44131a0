"""A measure of consistency: whether an answer follows from the chain before it."""

from __future__ import annotations

import re

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput

NUMBER = re.compile(r"[0-9]+")


class ChainAgreement(Reward):
    """1 if there is a chain and the answer is the last number in it, else 0.

    A direct answer has no chain that it could follow from.
    """

    name, needs, range = "chain_agreement", ("text",), (0.0, 1.0)
    source = "the answer is the last value of its chain"

    def score_one(self, item: RewardInput) -> float:
        thoughts, _, answer = (item.text or "").rpartition("</think>")
        values = NUMBER.findall(thoughts)
        return float(bool(values) and answer.strip() == values[-1])
