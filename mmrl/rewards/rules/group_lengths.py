"""Rewards for a length that is right for the prompt, by what its other answers did: ConciseR, VL-Cogito, Observe-R1.

Each needs to know which answers are right: another reward, named by `of` and built with `of_args`, decides it, as in
`cosine_length`. An answer is right if that reward returns its best value.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import RewardError, Status, attempt
from mmrl.rewards.core.reward_io import RewardInput, Scope
from mmrl.rewards.rules.lengths import LengthUnit, answer_length

Gate = Literal["all_right", "right", "always"]


class GroupLength(GroupReward):
    """The base of rewards that know the lengths of a group's answers, and which of them are right."""

    def __init__(
        self, of: str = "maths", of_args: Mapping[str, Any] | None = None, unit: LengthUnit = "tokens"
    ) -> None:
        """
        Args:
            of: the reward that decides what is right: an answer with its best value.
            of_args: its arguments.
            unit: the unit of lengths; tokens are read from `metadata["tokens"]`.
        """
        self.judge = load(of, **(of_args or {}))
        self.inner_rewards = (self.judge,)
        fits = self.judge.scope is Scope.SAMPLE and not self.judge.scheduled and self.judge.direction == "higher"
        if not fits or not math.isfinite(self.judge.range[1]):
            raise RewardError(f"{self.name}: {of} cannot tell right from wrong for a single answer")
        if unit not in get_args(LengthUnit):
            raise RewardError(f"{self.name}: unit is {unit!r}; it is one of {', '.join(get_args(LengthUnit))}")
        self.unit: LengthUnit = unit

    @abstractmethod
    def of_group(self, lengths: Sequence[int], right: Sequence[bool]) -> Sequence[float]:
        """Return the reward of each answer of a group."""

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score a group; answers that cannot be judged or measured fail, and count as wrong for the others."""
        judged = self.judge.score(items)
        name, best = self.judge.name, np.float32(self.judge.range[1])
        lengths = [attempt(answer_length, item, self.unit) for item in items]
        right = [
            status is Status.OK and bool(value >= best) and not isinstance(length, Exception)
            for value, status, length in zip(judged.values[name], judged.status[name], lengths, strict=True)
        ]
        known = [0 if isinstance(length, Exception) else length for length in lengths]
        found: list[Scored] = list(self.of_group(known, right))
        for row, length in enumerate(lengths):
            if isinstance(length, Exception):
                found[row] = length
            elif failure := judged.failure_of(name, row):
                found[row] = failure
        return found


class GatedLength(GroupLength):
    """1 - n / `limit` for an answer of n tokens, once all answers to its prompt are right; else 0.

    The length is optimised for prompts that the policy has mastered, and for no others: walk before you run. With
    `when: right`, a right answer has the reward even if others are wrong; with `when: always`, each answer has it.
    """

    name, needs, range = "gated_length", ("text",), (0.0, 1.0)
    source = "ConciseR (L-GRPO), arXiv:2505.21178"

    def __init__(
        self,
        limit: int,
        when: Gate = "all_right",
        of: str = "maths",
        of_args: Mapping[str, Any] | None = None,
        unit: LengthUnit = "tokens",
    ) -> None:
        super().__init__(of, of_args, unit)
        if when not in get_args(Gate):
            raise RewardError(f"gated_length: when is {when!r}; it is one of {', '.join(get_args(Gate))}")
        self.limit, self.when = _positive(limit, "gated_length: limit"), when

    def of_group(self, lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
        opened = [self.when == "always" or (each and (self.when == "right" or all(right))) for each in right]
        return [is_open * max(0.0, 1 - n / self.limit) for n, is_open in zip(lengths, opened, strict=True)]


class DynamicLength(GroupLength):
    """0 for a right answer; for a wrong one of n tokens -(1 + cos(πn / m)) / 2 up to 2m, with m the mean right length.

    So wrong answers win by being as long as right answers to the same prompt are, and the length follows difficulty.
    -1 from 2m on. Where no answer is right, m is `target`, and an answer of more than m has 0, but one of `limit` or
    more -1: hard prompts call for thoughts. The weight of the paper's code is 0.5 (alibaba-damo-academy/VL-Cogito
    verl/workers/reward/custom.py@7ab7856).
    """

    name, needs, range = "dynamic_length", ("text",), (-1.0, 0.0)
    source = "VL-Cogito (DyLR), arXiv:2507.22607"

    def __init__(
        self,
        target: int,
        limit: int,
        of: str = "maths",
        of_args: Mapping[str, Any] | None = None,
        unit: LengthUnit = "tokens",
    ) -> None:
        super().__init__(of, of_args, unit)
        self.target, self.limit = _positive(target, "dynamic_length: target"), _positive(limit, "dynamic_length: limit")
        if target > limit:
            raise RewardError(f"dynamic_length: target {target} is above limit {limit}")

    def of_group(self, lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
        known = [n for n, each in zip(lengths, right, strict=True) if each]
        if not known:
            return [self._unsolved(n) for n in lengths]
        mean = max(1.0, sum(known) / len(known))
        return [0.0 if each else towards(n, mean) for n, each in zip(lengths, right, strict=True)]

    def _unsolved(self, length: int) -> float:
        if length >= self.limit:
            return -1.0
        return towards(length, self.target) if length < self.target else 0.0


class ShortestRight(GroupLength):
    """1 for the shortest of the right answers to a prompt if it has more than `more_than` tokens, else 0.

    The floor keeps answers that are short enough from becoming shorter. Answers that are equally short share it. The
    weight in the paper's code is 0.2 (zrguo/Observe-R1 openrlhf/trainer/ppo_utils/experience_maker.py@f09c1e4, where
    one of several equally short answers has the bonus, and groups without a right answer give it to one of them).
    """

    name, needs, range = "shortest_right", ("text",), (0.0, 1.0)
    source = "Observe-R1, arXiv:2505.12432"

    def __init__(
        self,
        more_than: int = 100,
        of: str = "maths",
        of_args: Mapping[str, Any] | None = None,
        unit: LengthUnit = "tokens",
    ) -> None:
        super().__init__(of, of_args, unit)
        if more_than < 0:
            raise RewardError(f"shortest_right: more_than is {more_than}; it is 0 or above")
        self.more_than = more_than

    def of_group(self, lengths: Sequence[int], right: Sequence[bool]) -> list[float]:
        shortest = min((n for n, each in zip(lengths, right, strict=True) if each), default=0)
        return [float(each and n == shortest > self.more_than) for n, each in zip(lengths, right, strict=True)]


def towards(length: float, target: float) -> float:
    """Return -(1 + cos(π length / target)) / 2: 0 at the target, -1 at 0 and from twice the target on."""
    return -1.0 if length >= 2 * target else -(1 + math.cos(math.pi * length / target)) / 2


def _positive(value: int, argument: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RewardError(f"{argument} is {value!r}; expected a whole number above 0")
    return value
