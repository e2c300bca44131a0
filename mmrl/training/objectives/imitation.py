"""Imitation of demonstrations, or of the policy's own best answers."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.aggregation import aggregation_total, aggregation_weights
from mmrl.algorithms.policy_losses import imitation_loss
from mmrl.config.algorithms.supervised import RejectionSFTConfig, SFTConfig
from mmrl.policy import Capability, Policy, StepOutputs
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, trained_decisions
from mmrl.training.objectives.replay_passes import marked_steps


class SupervisedLearning(Objective):
    """The cross-entropy of answers, weighted by their advantages: SFT, and rejection sampling (RAFT, RFT).

    Rows with advantage 0 are left out of the mean, and of the computation if the policy can select rows.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(self, policy: Policy, config: SFTConfig | RejectionSFTConfig) -> None:
        self._policy = policy
        self._config = config

    def uses_copies(self) -> bool:
        """Return False: nothing is compared with the reference."""
        return False

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of tokens or rows to imitate."""
        return aggregation_total(_imitated(batch), self._config.aggregate)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay what is to be imitated and backpropagate each block as soon as it is computed."""
        rollout, imitated, credit = batch.rollout, _imitated(batch), batch.step_advantages
        metrics.mean("imitated_share", imitated.any(1).float().mean().item())
        weights = share * aggregation_weights(imitated, self._config.aggregate)
        rows = imitated.any(1)
        if Capability.SELECT_ROWS in self._policy.capabilities and not rows.all():
            imitated, weights, credit = imitated[rows], weights[rows], credit[rows]
            rollout = rollout.select(rows.nonzero()[:, 0].tolist())
        fresh = rollout.policy_version == self._policy.version
        step_indices = marked_steps(imitated)
        if not step_indices:
            return
        total = 0.0

        def visit(now: StepOutputs) -> None:
            nonlocal total
            here = list(now.step_indices)
            mask, old = imitated[:, here], rollout.log_probs[:, here]
            loss = (weights[:, here] * imitation_loss(now.log_probs, credit[:, here], mask)).sum()
            loss.backward()
            total += loss.item()
            count = int(mask.sum())
            metrics.mean("log_prob_mean", now.log_probs.detach()[mask].mean().item(), weight=count)
            if now.entropy is not None:
                metrics.mean("entropy", now.entropy.detach()[mask].mean().item(), weight=count)
            if fresh:
                metrics.maximum("log_prob_change_max", (now.log_probs.detach() - old)[mask].abs().max().item())

        with torch.enable_grad():
            self._policy.replay(rollout, step_indices, visit)
        metrics.mean("loss", total / (share or 1.0), weight=share)


def _imitated(batch: MicroBatch) -> Tensor:
    """Return [B, T] bool: decisions in scored rows with an advantage above 0.

    Raises:
        ValueError: an advantage is negative.
    """
    trained = trained_decisions(batch)
    if bool((batch.step_advantages[trained] < 0).any()):
        raise ValueError("imitation takes advantages >= 0, and some are negative: those are for a policy gradient")
    return trained & (batch.step_advantages > 0)
