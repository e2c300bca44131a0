"""The surprisal of answers under a model of the run: with the policy itself, the entropy of what it writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rewards.rules.reference_likelihood import model_of


class Surprisal(RowsReward):
    """The negative log-likelihood of a whole answer under a model of the run, its end included, in nats.

    The mean over answers that the model itself has sampled is an unbiased estimate of the entropy of its answers;
    `surprisal_token` is the mean over the tokens of an answer. It is a measure, not to be trained on: an algorithm's
    own metric `entropy` is that of the rows that it replays, and not all replay groups of equal rewards.
    """

    name, needs, range = "surprisal", ("text", "sample"), (0.0, math.inf)
    source = "-log p(y | x), y ~ model"

    def __init__(self, model: str = "policy") -> None:
        """`model` is a model of the run; `policy` is the policy as it is now."""
        self.models = (model,)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in few calls of the model."""
        queries = [TextQuery(item.sample, item.text or "") for item in items if item.sample is not None]
        found = model_of(context, self.models[0]).log_probs(queries)
        sums = [-float(np.sum(log_probs, dtype=np.float64)) for log_probs in found]
        return [
            {self.name: total, f"{self.name}_token": total / len(log_probs)}
            for total, log_probs in zip(sums, found, strict=True)
        ]
