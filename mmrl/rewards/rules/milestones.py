"""Progressive reward shaping (PRS, arXiv:2512.07478): rewards in stages, and the first and the last of these.

An answer is paid for its form first, then for its facts where the form is right, then for its quality. The
cascade `after` of a run's rewards does the same; `progressive` is a single reward, as samples of mixed tasks name one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import BatchReward, Reward, Scored
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardInput, Scope


class _Verdict(BatchReward):
    """A base class of rewards of 0 and 1 by what another reward says of an answer."""

    licence = "of the other reward"

    def __init__(self, of: str, of_args: Mapping[str, Any] | None = None) -> None:
        self.inner = load(of, **(of_args or {}))
        self.inner_rewards = (self.inner,)
        if self.inner.scope is not Scope.SAMPLE or self.inner.scheduled:
            raise RewardError(f"{self.name}: {of} must score single answers, and alike throughout training")

    @abstractmethod
    def holds(self, value: float) -> bool:
        """Return whether a value of the other reward earns 1; malformed answers never do."""

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score all answers in one call of the other reward; where it fails, this reward fails as well."""
        output, name = self.inner.score(items), self.inner.name
        found: list[Scored] = []
        for row, (value, status) in enumerate(zip(output.values[name], output.status[name], strict=True)):
            failure = output.failure_of(name, row)
            found.append(failure or float(status is Status.OK and self.holds(float(value))))
        return found


class Parseable(_Verdict):
    """1 if another reward can read the answer, right or wrong, else 0: the first stage of a progressive reward.

    `of` names the other reward, and `of_args` are its arguments.

        load("parseable", of="teds")
    """

    name, needs, range = "parseable", ("text",), (0.0, 1.0)
    source = "PRS, arXiv:2512.07478"

    def holds(self, value: float) -> bool:
        return True


class Reached(_Verdict):
    """1 if another reward of the answer reaches a value, else 0: a graded reward made binary.

    `of` names the other reward, `of_args` are its arguments, and `at_least` is the value; for a reward whose lower
    values are better, at most this.

        load("reached", of="teds", at_least=1.0)
    """

    name, needs, range = "reached", ("text",), (0.0, 1.0)
    source = "PRS, arXiv:2512.07478"

    def __init__(self, of: str, at_least: float, of_args: Mapping[str, Any] | None = None) -> None:
        super().__init__(of, of_args)
        low, high = self.inner.range
        if not low <= at_least <= high:
            raise RewardError(f"reached: at_least is {at_least}, and {of} has values in [{low:g}, {high:g}]")
        self.at_least = float(np.float32(at_least))  # rounded as values are

    def holds(self, value: float) -> bool:
        return self.inner.spec.sign * value >= self.inner.spec.sign * self.at_least


@dataclass(frozen=True)
class RewardStage:
    """A stage of a progressive reward."""

    reward: Reward
    weight: float  # its share of the whole, in (0, 1]
    passed_at: float  # the value from which on an answer is paid for the next stage, times the sign of the reward

    def grade(self, value: float) -> float:
        """Return a value of the reward as its place between the worst (0) and the best (1)."""
        low, high = self.reward.range
        place = (value - low) / (high - low)
        return place if self.reward.spec.sign > 0 else 1 - place


class Progressive(BatchReward):
    """Several rewards in stages, each of which is paid where all before it are passed (PRS).

    `stages` are mappings with `reward`, the name of a reward of finite range, and perhaps `args`, its arguments,
    `weight`, its share of the whole (1), and `at_least`, the value that passes it (its best value). The value is the
    weighted mean of the places of all stages between their worst and best values, 0 beyond the first that is not
    passed. Each stage scores only answers that come so far. `progressive_passed` is the number of stages passed.

        load("progressive", stages=[{"reward": "parseable", "args": {"of": "teds"}}, {"reward": "teds"}])
    """

    name, needs, range = "progressive", ("text",), (0.0, 1.0)
    source = "PRS, arXiv:2512.07478"
    licence = "of the other rewards"

    def __init__(self, stages: Sequence[Mapping[str, Any]]) -> None:
        if not stages:
            raise RewardError("progressive: there are no stages: name a reward for each")
        for each in stages:
            if "reward" not in each or each.keys() - {"reward", "args", "weight", "at_least"}:
                raise RewardError(f"progressive: a stage is {dict(each)}; expected reward, args, weight and at_least")
        whole = sum(each.get("weight", 1.0) for each in stages)
        self.stages = [self._stage(each, whole) for each in stages]
        self.inner_rewards = tuple(stage.reward for stage in self.stages)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score the answers stage by stage; where a stage fails, this reward fails as well."""
        totals, passed = np.zeros(len(items)), np.zeros(len(items))
        failed: dict[int, Exception] = {}
        rows = list(range(len(items)))
        for stage in self.stages:
            name, sign = stage.reward.name, stage.reward.spec.sign
            output = stage.reward.score([items[row] for row in rows])
            further = []
            for place, (row, value, status) in enumerate(
                zip(rows, output.values[name].tolist(), output.status[name], strict=True)
            ):
                if failure := output.failure_of(name, place):
                    failed[row] = failure
                    continue
                totals[row] += stage.weight * stage.grade(value)
                if status is Status.OK and sign * value >= stage.passed_at:
                    passed[row] += 1
                    further.append(row)
            rows = further
        return [
            failed.get(row) or {self.name: min(1.0, float(totals[row])), f"{self.name}_passed": float(passed[row])}
            for row, _ in enumerate(items)
        ]

    def _stage(self, chosen: Mapping[str, Any], whole: float) -> RewardStage:
        reward, weight = load(chosen["reward"], **chosen.get("args", {})), chosen.get("weight", 1.0)
        if reward.scope is not Scope.SAMPLE or reward.scheduled or not all(map(math.isfinite, reward.range)):
            raise RewardError(f"progressive: {reward.name} must score single answers, alike throughout training, in a "
                              "finite range")  # fmt: skip
        low, high = reward.range
        best = high if reward.direction == "higher" else low
        at_least = chosen.get("at_least", best)
        if weight <= 0 or not low <= at_least <= high:
            raise RewardError(f"progressive: the stage {reward.name} has the weight {weight} and at_least {at_least}; "
                              f"expected a weight above 0, and a value in [{low:g}, {high:g}]")  # fmt: skip
        return RewardStage(reward, weight / whole, reward.spec.sign * float(np.float32(at_least)))
