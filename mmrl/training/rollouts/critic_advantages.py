"""Rollouts whose advantages come from a critic (PPO)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.algorithms.generalized_advantage import generalized_advantages, whitened
from mmrl.config.algorithms.actor_critic import PPOConfig
from mmrl.errors import ConfigError
from mmrl.trained_models import Critic
from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import trained_decisions
from mmrl.training.rollouts.exchange import shared_values
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class CriticAdvantages(DerivedSource):
    """A source that replaces the advantages of another source by those that a critic gives.

    The total reward of an answer comes with its last token.
    """

    source: ExperienceSource
    critic: Critic
    config: PPOConfig

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience with advantages, and what the critic is to learn.

        Metrics: `value/mean`, the mean estimate, and `value/explained`, the share of the variance of returns that it
        explains; below 0 it is worse than their mean.
        """
        found = self.source.collect(iteration, progress, phases)
        with phases("rollout"), torch.no_grad():
            estimates = shared_values(self.critic, [batch.rollout for batch in found.micro_batches])
            batches = [self._judged(*each) for each in zip(found.micro_batches, estimates, strict=True)]
        metrics: dict[str, float] = {}
        decisions = [trained_decisions(batch) for batch in batches]
        if any(each.any() for each in decisions):
            values, returns = (
                torch.cat([_of(batch, name)[mask] for batch, mask in zip(batches, decisions, strict=True)])
                for name in ("values", "returns")
            )
            spread = returns.var(correction=0)
            unexplained = (returns - values).var(correction=0)
            metrics["value/mean"] = values.mean().item()
            metrics["value/explained"] = (1 - unexplained / spread).item() if spread > 0 else 0.0
            if self.config.whiten:
                batches = _whitened(batches, decisions)
        return Experience(batches, found.metrics | metrics, found.gap)

    def _judged(self, batch: MicroBatch, values: Tensor) -> MicroBatch:
        if batch.totals is None:
            raise ConfigError("algorithm: ppo learns from scored answers alone: leave demonstrations out")
        rollout, trained = batch.rollout, trained_decisions(batch)
        values = values.to(trained.device)
        rewards = at_last_decision(batch.totals.to(values).nan_to_num(0.0), rollout.mask)
        advantages, returns = generalized_advantages(
            rewards, values, rollout.mask, self.config.discount, self.config.trace
        )
        return replace(batch, step_advantages=advantages.where(trained, 0.0), values=values, returns=returns)


def at_last_decision(
    totals: Tensor,  # [B] float
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T]; 0 at other decisions
    """Return the reward of each row as that of its last decision.

    >>> at_last_decision(torch.tensor([5.0, 7.0]), torch.tensor([[True, True], [True, False]]))
    tensor([[0., 5.],
            [7., 0.]])
    """
    later = mask.flip(1).cumsum(1).flip(1)  # decisions from here on
    return totals[:, None].where(mask & (later == 1), 0.0)


def _whitened(batches: list[MicroBatch], decisions: list[Tensor]) -> list[MicroBatch]:
    """Return the batches with advantages of mean 0 and standard deviation 1 over all decisions."""
    whole = whitened(torch.cat([batch.step_advantages[mask] for batch, mask in zip(batches, decisions, strict=True)]))
    parts = whole.split([int(mask.sum()) for mask in decisions])
    return [
        replace(batch, step_advantages=torch.zeros_like(batch.step_advantages).masked_scatter(mask, part))
        for batch, mask, part in zip(batches, decisions, parts, strict=True)
    ]


def _of(batch: MicroBatch, name: str) -> Tensor:
    found = getattr(batch, name)
    assert isinstance(found, Tensor)
    return found
