"""`direct_verdict`: the probability of the right verdict where a judge leaves out its thoughts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.rules.reference_likelihood import columns, model_of, query
from mmrl.rewards.rules.verdicts import VERDICTS


class DirectVerdict(Reward):
    """P(right verdict) / (P(right) + P(wrong)) after empty thoughts, by a model of the run; the answer is not read.

    A judge that was trained to think may also have learnt to decide at once (arXiv:2505.03318): this measures it.
    """

    name, needs, range = "direct_verdict", ("references.answer", "sample"), (0.0, 1.0)
    source = "p(y* | x, no thoughts), normalised over both verdicts"

    def __init__(self, model: str = "policy", direct: str = "<think></think>") -> None:
        """
        Args:
            model: a model of the run.
            direct: the beginning of an answer without thoughts.
        """
        self.models, self.direct = (model,), direct

    def score_one(self, item: RewardInput) -> float:
        """Raise, since a model of a run is needed."""
        raise ScoringFailed(f"{self.name} computes with a model of a run, and here is none", "no_model")

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in few calls of the model."""
        model = model_of(context, self.models[0])
        found = columns(model, [query(item, letter, self.direct) for item in items for letter in VERDICTS])
        scored: list[Scored] = []
        for row, item in enumerate(items):
            both = found[2 * row : 2 * row + 2]
            if fault := next((each for each in both if isinstance(each, Exception)), None):
                scored.append(fault)
                continue
            first, second = (float(np.sum(each)) for each in both if not isinstance(each, Exception))
            right = 1 / (1 + float(np.exp(second - first)))
            scored.append(right if item.references["answer"] == VERDICTS[0] else 1 - right)
        return scored
