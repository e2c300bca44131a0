"""OREAL: a policy gradient on credit by outcome, and a model of tokens that learns to tell right from wrong answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from mmrl.config.algorithms.outcome_learning import OREALConfig
from mmrl.config.named_models import POLICY
from mmrl.trained_models import Critic
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs, trained_decisions
from mmrl.training.objectives.policy_gradient import PolicyGradient


class OutcomeLearning(PolicyGradient):
    """A policy gradient, and where a critic is configured, its loss: the cross-entropy of an answer's outcome.

    The logit of an answer is the mean of the critic's values of its tokens. Metrics: `importance/loss` and
    `importance/accuracy`, the share of answers whose outcome it predicts.
    """

    _config: OREALConfig
    _critic: Critic | None = None
    _share_of_answer: float = 0.0
    """The weight of an answer in the critic's loss of the present update."""

    @classmethod
    def build(cls, config: OREALConfig, inputs: ObjectiveInputs) -> OutcomeLearning:  # type: ignore[override]
        """Return the objective, with its critic if one is configured."""
        built = super().build(config, inputs)
        assert isinstance(built, OutcomeLearning)
        if config.critic is not None:
            built._critic = inputs.critics[config.critic]
            built.trained = (POLICY, config.critic)
        return built

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        """Add the gradients of an update: the policy's mean is over tokens, and the critic's over answers."""
        answers = sum(int(trained_decisions(batch).any(1).sum()) for batch in batches)
        self._share_of_answer = factor / max(1, answers)
        super().accumulate(batches, factor, seeds, metrics, gathers_in_calls)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate the policy's loss, then the critic's; with a share of 0, zeros through both."""
        super().backward(batch, share, seed, metrics)
        if self._critic is None:
            return
        if batch.totals is None:
            raise ValueError("outcomes follow from rewards, and the rows of this micro-batch were not scored")
        trained = trained_decisions(batch)
        rows = trained.any(1)
        if not rows.any():
            return
        with torch.enable_grad():
            values = self._critic.values(batch.rollout).to(trained.device).where(trained, 0.0)
            logits = (values.sum(1) / trained.sum(1).clamp(min=1))[rows]
            right = (batch.totals.to(logits.device)[rows] >= self._config.threshold).to(logits.dtype)
            losses = binary_cross_entropy_with_logits(logits, right, reduction="none")
            ((self._share_of_answer if share else 0.0) * losses.sum()).backward()
        correct = ((logits.detach() > 0) == (right > 0)).float().mean().item()
        metrics.mean("importance/loss", losses.detach().mean().item(), weight=len(right))
        metrics.mean("importance/accuracy", correct, weight=len(right))
