"""OREAL: a policy gradient on credit by outcome, and a model of tokens that learns to tell right from wrong answers."""

from __future__ import annotations

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

    @classmethod
    def build(cls, config: OREALConfig, inputs: ObjectiveInputs) -> OutcomeLearning:  # type: ignore[override]
        """Return the objective, with its critic if one is configured."""
        built = super().build(config, inputs)
        assert isinstance(built, OutcomeLearning)
        if config.critic is not None:
            built._critic = inputs.critics[config.critic]
            built.trained = (POLICY, config.critic)
        return built

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate the policy's loss, then the critic's, a mean over answers."""
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
            loss = binary_cross_entropy_with_logits(logits, right)
            (share * loss).backward()
        correct = ((logits.detach() > 0) == (right > 0)).float().mean().item()
        metrics.mean("importance/loss", loss.item(), weight=len(right))
        metrics.mean("importance/accuracy", correct, weight=len(right))
