"""Rewards for a plan of meta-actions, one or more on each axis, such as the speed and the path of a vehicle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form
from mmrl.rewards.parsing.phrases import Phrase, count_phrases, words_of

Plan = Mapping[str, frozenset[str]]
"""The actions on each axis."""


class MetaActions(GroupReward):
    """The mean over axes of accuracy × importance × diversity; and `plan_right`, 1 for exactly the true plan.

    On each axis, accuracy is the F1 of the named and the true actions, so that naming all of them does not pay;
    importance is the mean weight of the true ones over the largest weight of all; diversity is 1 - `diversity` × the
    share of the group's other answers that have the same plan. All lie in [0, 1]. `references["answer"]` is {axis:
    action, or a list of them}. Actions are sought in the answer as whole words, and other words are ignored.

    The planning rewards of AlphaDrive, whose diversity costs 20 % at most, and whose fourth is `format`. Advantages
    that are divided by the spread of a single group undo most of the weights: choose `dr_grpo`, or `std: batch`.
    """

    name, needs, range = "meta_actions", ("text", "references.answer"), (0.0, 1.0)
    source = "AlphaDrive, arXiv:2503.07608"

    def __init__(self, axes: Mapping[str, Mapping[str, float]], diversity: float = 0.2) -> None:
        """
        Args:
            axes: the actions of each axis with their weights, as {"speed": {"keep": 1, "stop": 3}, "path": {...}}.
            diversity: the share of an axis's reward that an answer loses if all others of its group have its plan.
        """
        if not axes or not all(axes.values()):
            raise RewardError("meta_actions: axes needs one axis or more, each with actions and their weights")
        weights = [weight for actions in axes.values() for weight in actions.values()]
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not max(weights) > 0:
            raise RewardError("meta_actions: weights of actions are 0 or above and finite, and one is above 0")
        if not 0 <= diversity <= 1:
            raise RewardError(f"meta_actions: diversity is {diversity}; it is a share, from 0 to 1")
        self.axes, self.diversity, self._most = (
            {axis: dict(each) for axis, each in axes.items()},
            diversity,
            max(weights),
        )
        self._phrases: dict[Phrase, tuple[str, str]] = {}
        for axis, actions in self.axes.items():
            for action in actions:
                phrase = words_of(action)
                if not phrase or phrase in self._phrases:
                    raise RewardError(f"meta_actions: {axis}: {action!r} is no name, or another action has it")
                self._phrases[phrase] = axis, action

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        plans = [attempt(self.plan_of, item) for item in items]
        known = Counter(_key(plan) for plan in plans if not isinstance(plan, Exception))
        return [
            plan
            if isinstance(plan, Exception)
            else attempt(self._score, item, plan, (known[_key(plan)] - 1, len(items) - 1))
            for item, plan in zip(items, plans, strict=True)
        ]

    def plan_of(self, item: RewardInput) -> Plan:
        """Return the actions that an answer names on each axis.

        Raises:
            InvalidAnswer: the answer is marked more than once, or too long.
        """
        named = count_phrases(words_of(answer_text(item.text or "", resolve_form(item))), self._phrases)
        places = [self._phrases[phrase] for phrase, count in named.items() if count]
        return {axis: frozenset(action for where, action in places if where == axis) for axis in self.axes}

    def _score(self, item: RewardInput, plan: Plan, same: tuple[int, int]) -> Mapping[str, float]:
        truth = self._truth(item.references["answer"])
        varied = 1 - self.diversity * same[0] / max(same[1], 1)
        worth = [_f1(plan[axis], truth[axis]) * self._importance(axis, truth[axis]) for axis in self.axes]
        return {self.name: varied * sum(worth) / len(worth), "plan_right": float(plan == truth)}

    def _importance(self, axis: str, actions: frozenset[str]) -> float:
        return sum(self.axes[axis][action] for action in actions) / len(actions) / self._most

    def _truth(self, answer: Any) -> Plan:
        if not isinstance(answer, Mapping) or answer.keys() != self.axes.keys():
            axes = ", ".join(self.axes)
            raise ScoringFailed(f"references['answer'] is {answer!r:.60}; expected the actions of {axes}", "reference")
        truth: dict[str, frozenset[str]] = {}
        for axis, actions in answer.items():
            each = [actions] if isinstance(actions, str) else actions
            if not isinstance(each, list | tuple) or not each or not all(a in self.axes[axis] for a in each):
                known = ", ".join(self.axes[axis])
                raise ScoringFailed(f"references['answer'] has {actions!r:.60} for {axis}, not of {known}", "reference")
            truth[axis] = frozenset(each)
        return truth


def _key(plan: Plan) -> tuple[frozenset[str], ...]:
    return tuple(plan.values())


def _f1(named: frozenset[str], true: frozenset[str]) -> float:
    """Return 2 × both / (named + true), for a truth that is not empty."""
    return 2 * len(named & true) / (len(named) + len(true))
