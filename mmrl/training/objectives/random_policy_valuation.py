"""ROVER: the squared error of log-ratios against rewards and the values of the next token (arXiv:2509.24981)."""

from __future__ import annotations

from typing import ClassVar

import torch

from mmrl.algorithms.random_policy_values import random_policy_loss, successor_values
from mmrl.config.algorithms.random_policy_valuation import ROVERConfig
from mmrl.policy import Capability, StepOutputs
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, trained_decisions
from mmrl.training.objectives.replay_passes import marked_steps


class RandomPolicyValuation(Objective):
    """The mean over tokens of the squared error of their values, which are log-ratios to the policy that sampled.

    Metrics: `loss`, `entropy`, `value`, the mean of the values, `successor_value`, that of the values of the next
    token, and `ratio_mean`, of tokens.
    """

    _config: ROVERConfig
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS, Capability.ENTROPY})

    def uses_copies(self) -> bool:
        """Return False: values are relative to the log-probabilities as sampled."""
        return False

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of tokens in rows that could be scored."""
        return int(trained_decisions(batch).sum())

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay all tokens at once, since a token's target has the value of the next one."""
        rollout = batch.rollout
        step_indices = marked_steps(rollout.mask)
        if not step_indices:
            return
        if batch.mean_log_probs is None:
            raise ValueError("rover learns from rollouts with the mean log-probabilities of the policy that sampled")
        trained, old = trained_decisions(batch)[:, step_indices], rollout.log_probs[:, step_indices]
        rewards = batch.step_advantages.to(old.device)[:, step_indices]
        old_means = batch.mean_log_probs.to(old.device)[:, step_indices]

        def visit(now: StepOutputs) -> None:
            if now.mean_log_probs is None or len(now.step_indices) != len(step_indices):
                raise ValueError("rover needs the mean log-probabilities of all tokens of an answer in one call")
            temperature = self._config.temperature
            following = successor_values(
                now.mean_log_probs, old_means, rollout.mask[:, step_indices], temperature
            ).where(trained, 0.0)
            target = self._config.successors * following
            terms = random_policy_loss(now.log_probs, old, rewards, target, trained, temperature)
            count = max(int(trained.sum()), 1)
            (share * terms.sum() / count).backward()
            moved = (now.log_probs.detach() - old).where(trained, 0.0)
            if rollout.policy_version == self._policy.version:
                metrics.maximum("log_prob_change_max", moved.abs().max().item())
            measured = {"loss": terms.detach(), "value": temperature * moved, "successor_value": following}
            measured |= {"ratio_mean": moved.exp()} | ({} if now.entropy is None else {"entropy": now.entropy.detach()})
            if trained.any():
                for name, values in measured.items():
                    metrics.mean(name, values[trained].mean().item(), weight=count)

        with torch.enable_grad():
            self._policy.replay(rollout, step_indices, visit)
