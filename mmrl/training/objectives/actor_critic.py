"""PPO: a clipped policy gradient for the policy, and a regression of returns for its critic."""

from __future__ import annotations

import torch

from mmrl.algorithms.aggregation import aggregation_weights
from mmrl.algorithms.generalized_advantage import value_loss
from mmrl.config.algorithms.actor_critic import PPOConfig
from mmrl.config.named_models import POLICY
from mmrl.trained_models import Critic
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs, trained_decisions
from mmrl.training.objectives.policy_gradient import PolicyGradient


class ActorCritic(PolicyGradient):
    """A policy gradient on the advantages that a critic gave, and the critic's own loss; each has its optimizer.

    The mean of the critic's loss is over the same decisions as that of the policy. Metrics: `value/loss`, and
    `value/clip_fraction`, the share of decisions whose value has reached the bound of its update.
    """

    _config: PPOConfig
    _critic: Critic

    @classmethod
    def build(cls, config: PPOConfig, inputs: ObjectiveInputs) -> ActorCritic:  # type: ignore[override]
        """Return the objective with its critic, one of the models of the run."""
        built = super().build(config, inputs)
        assert isinstance(built, ActorCritic)
        built._critic = inputs.critics[config.critic]
        built.trained = (POLICY, config.critic)
        return built

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate the policy's loss, then the critic's."""
        super().backward(batch, share, seed, metrics)
        trained = trained_decisions(batch)
        if batch.values is None or batch.returns is None:
            raise ValueError("a critic learns from returns, and this micro-batch has none")
        if not trained.any():
            return
        weights = share * aggregation_weights(trained, self._settings.how, self._settings.constant)
        with torch.enable_grad():
            values = self._critic.values(batch.rollout).to(trained.device)
            terms = value_loss(values, batch.values, batch.returns, self._config.value_clip)
            (weights * terms.loss).where(trained, 0.0).sum().backward()
        count = float(trained.sum())
        metrics.mean("value/loss", terms.loss.detach()[trained].mean().item(), weight=count)
        metrics.mean("value/clip_fraction", terms.clipped[trained].float().mean().item(), weight=count)
