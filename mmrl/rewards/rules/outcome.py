"""Rewards for what the episode of an environment came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.errors import ConfigError
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput


class EpisodeOutcome(Reward):
    """The value of a key of the episode's outcome, such as `success`; true is 1 and false is 0. Or the mean of several.

    With `weights`, the value of each key is a further score, under its name; one of weight 0 is measured alone.
    """

    name, needs, range = "outcome", ("outcome",), (0.0, 1.0)
    source = "the environment of the run"

    def __init__(
        self, key: str = "success", also: Sequence[str] = (), weights: Mapping[str, float] | None = None
    ) -> None:
        """
        Args:
            key: of the outcome, whose value is a truth value or a number in [0, 1].
            also: further keys of that kind, which are measured beside it, each under its own name, and not rewarded.
            weights: instead of `key`, the weights of several keys in their mean; each is measured too.
        """
        if weights is not None:
            total = sum(weights.values())
            if not weights or min(weights.values()) < 0 or not math.isfinite(total) or not total:
                raise RewardError(f"outcome: weights are numbers from 0 on, and not all 0: got {dict(weights)!r:.80}")
        if self.name in (*also, *(weights or ())):
            raise RewardError("outcome: no key can be called outcome, which is the name of the reward")
        self.weights = {key: 1.0} if weights is None else dict(weights)
        self.measured = tuple(dict.fromkeys((*(weights or ()), *also)))

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        values = {key: _value(item.outcome, key) for key in (*self.weights, *self.measured)}
        mean = sum(weight * values[key] for key, weight in self.weights.items()) / sum(self.weights.values())
        return {key: values[key] for key in self.measured} | {self.name: mean}


class ToolCalls(Reward):
    """The calls of tools that an episode carried out, over the number above which more cost no more."""

    name, needs, range = "tool_calls", ("outcome",), (0.0, 1.0)
    direction = "lower"
    source = "the environment of the run"

    def __init__(self, most: int = 1) -> None:
        """
        Args:
            most: the number of calls from which the value is 1.
        """
        if most < 1:
            raise ConfigError(f"tool_calls: most is {most}, expected 1 or more")
        self.most = most

    def score_one(self, item: RewardInput) -> float:
        calls = item.outcome.get("calls")
        if not isinstance(calls, Mapping):
            raise ScoringFailed("the outcome has no calls: they are counted by the environment tools", "missing")
        return min(sum(calls.values()), self.most) / self.most


def _value(outcome: Mapping[str, Any], key: str) -> float:
    if key not in outcome:
        known = ", ".join(sorted(outcome)) or "nothing"
        raise ScoringFailed(f"the outcome has no {key!r}: it has {known}", "missing")
    value = outcome[key]
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise ScoringFailed(f"the outcome's {key!r} is {value!r:.60}, not a number in [0, 1]", "out_of_range")
    return float(value)
