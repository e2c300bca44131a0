"""A measure of solutions: whether an answer is right and its chain leads to it, so that no lucky number counts."""

from __future__ import annotations

import re

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput

RESULT, NUMBER = re.compile(r"=([0-9]+)"), re.compile(r"[0-9]+")


class RightChain(Reward):
    """1 if the answer is right and the chain has the value after each step, in order; else 0.

    The values of a chain in full stand after its `=`; those of another chain are all of its numbers. Others may stand
    between them, such as one that a later `wait` takes back, but the last one is the answer. A direct answer has no
    chain.
    """

    name, needs, range = "right_chain", ("text", "references.path"), (0.0, 1.0)
    source = "the values that a calculation leads over, and the numbers of its chain"

    def score_one(self, item: RewardInput) -> float:
        thoughts, _, answer = (item.text or "").rpartition("</think>")
        values = (RESULT if "=" in thoughts else NUMBER).findall(thoughts)
        wanted = [str(value) for value in item.references["path"][1:]]
        named = iter(values)
        in_order = all(value in named for value in wanted)
        return float(in_order and values[-1] == wanted[-1] == answer.strip())
