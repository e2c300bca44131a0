"""`hybrid`: a rule where it is sure, and a learned reward model where it is not (arXiv:2510.05283).

A rule that checks an answer is right about what it covers, and says nothing about the rest; a reward model has an
opinion about everything, and a policy finds where it is wrong. Each answer gets both, weighted by how sure the rule is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import Reward, RowsReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, ScoringFailed, Status, attempt
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, RewardOutput, Scope

UNKNOWN = (Status.ERROR, Status.TIMEOUT)


class HybridReward(RowsReward):
    """A rule's verdict and a reward model's score of each answer, weighted by the rule's confidence c: c r + (1 − c) m.

    c is 0 where the rule cannot score, as without a reference, and otherwise `if_right` or `if_wrong`, times the
    sample's own `metadata.confidence` in [0, 1], if it has one. r and m are scaled to [0, 1]: by the ranges of the two
    rewards, and a score without bounds, as of `learned_text`, by the logistic function. The model is not called for
    answers that the rule is sure of. Also given: `hybrid_confidence`, c, and `hybrid_rule` where c is above 0.
    """

    name, needs, range = "hybrid", (), (0.0, 1.0)
    source = "Hybrid and multi-aspect reward optimization, arXiv:2510.05283"

    def __init__(
        self,
        rule: str,
        model: str,
        rule_args: Mapping[str, Any] | None = None,
        model_args: Mapping[str, Any] | None = None,
        if_right: float = 1.0,
        if_wrong: float = 1.0,
    ) -> None:
        """
        Args:
            rule: the reward that checks answers, such as `numeric`; its values have bounds.
            model: the reward that stands in for it, such as `learned_text` or `judge`.
            rule_args: the arguments of the rule.
            model_args: those of the model.
            if_right: the confidence in the rule's best value, in [0, 1].
            if_wrong: the confidence in any other: below 1 for a rule that overlooks right answers of another form.
        """
        self.rule, self.model = load(rule, **(rule_args or {})), load(model, **(model_args or {}))
        self.inner_rewards = (self.rule, self.model)
        if not all(math.isfinite(bound) for bound in self.rule.range):
            raise RewardError(f"hybrid: the rule {rule} has values without bounds, which no other score compares with")
        for part in self.inner_rewards:
            if part.scope is not Scope.SAMPLE or part.scheduled or part.models:
                raise RewardError(
                    f"hybrid: {part.name} compares answers, changes during training or asks a model of the run; "
                    "choose a reward of single answers"
                )
        for what, value in (("if_right", if_right), ("if_wrong", if_wrong)):
            if not 0 <= value <= 1:
                raise RewardError(f"hybrid: {what} is {value}; a confidence lies in [0, 1]")
        self.if_right, self.if_wrong = if_right, if_wrong

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers by the rule, and those that it is not sure of by the model, in one call each."""
        checked = self.rule.score(items, context)
        verdicts = scaled(self.rule, checked)
        failed: dict[int, Scored] = {}
        confidence = [0.0] * len(items)
        for row, status in enumerate(checked.status[self.rule.name]):
            own = attempt(_own_confidence, items[row], errors=FAULTS)
            if isinstance(own, Exception):
                failed[row] = own
            elif status not in UNKNOWN:
                confidence[row] = own * (self.if_right if verdicts[row] >= 1 else self.if_wrong)
        unsure = [row for row, sure in enumerate(confidence) if sure < 1 and row not in failed]
        opinions = np.zeros(len(items))
        if unsure:
            judged = self.model.score([items[row] for row in unsure], context)
            opinions[unsure] = scaled(self.model, judged)
            for place, row in enumerate(unsure):
                if failure := judged.failure_of(self.model.name, place):
                    failed[row] = failure
        found: list[Scored] = []
        for row, (sure, verdict, opinion) in enumerate(zip(confidence, verdicts, opinions, strict=True)):
            if row in failed:
                found.append(failed[row])
                continue
            value = (sure * verdict if sure else 0.0) + (1 - sure) * opinion
            also = {f"{self.name}_rule": float(verdict)} if sure else {}
            found.append({self.name: float(value), f"{self.name}_confidence": sure, **also})
        return found


def scaled(reward: Reward, output: RewardOutput) -> NDArray[np.float64]:  # [B]
    """Return a reward's values in [0, 1], 1 the best; by the logistic function if it has no bounds; NaN stays NaN."""
    values = output.values[reward.name].astype(np.float64) * reward.spec.sign
    low, high = sorted(bound * reward.spec.sign for bound in reward.range)
    if math.isfinite(low) and math.isfinite(high):
        return np.asarray((values - low) / (high - low))
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))  # the logistic function, without overflow


def _own_confidence(item: RewardInput) -> float:
    value = item.references.get("confidence", 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ScoringFailed(f"metadata.confidence is {value!r:.60}, not a number in [0, 1]", "reference")
    return float(value)
