"""The difference between the rates of thoughts about long and about short calculations, as a mean over prompts."""

from __future__ import annotations

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.rules.thinking_modes import thinks

SHORT, LONG = 2, 5
"""The numbers of operands up to which a calculation is short, and from which it is long."""


class ThinkingGap(Reward):
    """1 for thoughts about a long calculation, -1 for thoughts about a short one, 0 otherwise.

    Its mean over equally many of each is half of the rate of thoughts on long ones less that on short ones.
    """

    name, needs, range = "thinking_gap", ("text",), (-1.0, 1.0)
    source = "thoughts by the number of operands"

    def score_one(self, item: RewardInput) -> float:
        operands = item.references.get("operands")
        if not isinstance(operands, int):
            raise ScoringFailed(
                "the sample has no metadata `operands`: it is for calculations of ShapeWorld", "missing"
            )
        return float(thinks(item.text or "")) * ((operands >= LONG) - (operands <= SHORT))
