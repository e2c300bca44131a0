"""A measure of judgement: whether an answer writes a chain for calculations that need one, and for no others."""

from __future__ import annotations

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput


class ChainWhereNeeded(Reward):
    """1 if an answer has thoughts and the calculation has `operands` or more, or neither; else 0.

    A direct answer to two operands is as often right as one with a chain, after a little training; from three on it is
    near chance.
    """

    name, needs, range = "chain_where_needed", ("text", "references.operands"), (0.0, 1.0)
    source = "thoughts of an answer, and operands of its calculation"

    def __init__(self, operands: int = 3) -> None:
        if operands < 1:
            raise RewardError(f"chain_where_needed: operands is {operands}; it is 1 or above")
        self.operands = operands

    def score_one(self, item: RewardInput) -> float:
        thoughts = (item.text or "").partition("</think>")[0].removeprefix("<think>")
        return float(bool(thoughts.strip()) == (item.references["operands"] >= self.operands))
