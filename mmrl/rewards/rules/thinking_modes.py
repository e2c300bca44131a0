"""A reward for answers that think only where it pays: direct answers win more if right, and lose if wrong.

AutoThink, arXiv:2505.10832. Its first stage holds both modes in balance over a batch, its second one does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import Reward, RowsReward
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, Scope

VALUES: Mapping[tuple[bool, bool], float] = {
    (True, True): 1.0,
    (True, False): 0.0,
    (False, True): 2.0,
    (False, False): -1.0,
}
"""The reward by (thinks, is right)."""


class ThinkingMode(RowsReward):
    """1 for a right answer after thoughts and 0 for a wrong one, 2 for a right direct answer and -1 for a wrong one.

    Thoughts are all that precedes the last </think>; the tags, white space and `ellipsis`, which a prompt may begin
    them with, are none. With `balance` above 0, the answers of the mode whose share of the batch exceeds its target
    move towards -1, the more the larger the excess is: a right one by 1 at an excess of 1 / balance.
    """

    name, needs, range = "thinking_mode", ("text",), (-1.0, 2.0)
    version = "2"
    source = "AutoThink, arXiv:2505.10832"

    def __init__(
        self,
        of: str = "maths",
        of_args: Mapping[str, Any] | None = None,
        balance: float = 0.0,
        target: float = 0.5,
        ellipsis: str = "...",
    ) -> None:
        """
        Args:
            of: the reward that decides what is right: an answer with its best value.
            of_args: its arguments.
            balance: the strength of the balance.
            target: the share of answers that think.
            ellipsis: the text that thoughts may begin with, and that is none.
        """
        if balance < 0 or not 0 < target < 1:
            raise RewardError(f"thinking_mode: balance {balance} and target {target}; at least 0, and between 0 and 1")
        self.judge = load(of, **(of_args or {}))
        self.inner_rewards = (self.judge,)
        if self.judge.scope is not Scope.SAMPLE or self.judge.scheduled or self.judge.direction != "higher":
            raise RewardError(f"thinking_mode: {of} cannot tell right from wrong for a single answer")
        self.balance, self.target, self.ellipsis = balance, target, ellipsis

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[float | Exception]:
        """Score all answers of a batch in one call, since the balance is that of the batch."""
        judged = self.judge.score(items, context)
        name, best = self.judge.name, np.float32(self.judge.range[1])
        thinking = [thinks(item.text or "", self.ellipsis) for item in items]
        share = sum(thinking) / len(items)
        excess = {True: share - self.target, False: self.target - share}
        scores: list[float | Exception] = []
        for row, (value, status, mode) in enumerate(
            zip(judged.values[name], judged.status[name], thinking, strict=True)
        ):
            if failure := judged.failure_of(name, row):
                scores.append(failure)
                continue
            right = status is Status.OK and bool(value >= best)
            scores.append(max(-1.0, VALUES[mode, right] - self.balance * max(0.0, excess[mode])))
        return scores

    def fingerprint(self) -> str:
        """Return the digest of this reward and of the one that decides what is right; with a balance there is none.

        Raises:
            RewardError: a score depends on the other answers of a batch, so none may be kept.
        """
        if self.balance:
            raise RewardError("thinking_mode cannot be cached: its balance depends on the batch")
        return super().fingerprint()


class Thinks(Reward):
    """1 for an answer with thoughts before its last </think>, 0 for a direct one."""

    name, needs, range = "thinks", ("text",), (0.0, 1.0)
    version = "2"
    source = "text between tags"

    def __init__(self, ellipsis: str = "...") -> None:
        self.ellipsis = ellipsis

    def score_one(self, item: RewardInput) -> float:
        return float(thinks(item.text or "", self.ellipsis))


def thinks(text: str, ellipsis: str = "...") -> bool:
    """Return whether an answer has thoughts; one that was cut off in them has.

    All that precedes the last `</think>` is hidden from the rewards of answers (`strip_thinking`), and so are thoughts,
    in however many tags they stand, or beside them.

    >>> thinks("<think>3+5=8</think>8"), thinks("<think> ... </think>8"), thinks("8")
    (True, False, False)
    """
    hidden, _, visible = text.rpartition("</think>")
    parts = [*re.split("</?think>", hidden), visible.partition("<think>")[2]]
    return any(part.strip().removeprefix(ellipsis).strip() for part in parts)
