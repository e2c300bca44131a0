"""Truncated importance sampling for rollout engines that differ from the trainer in kernels, precision or weights.

An answer is sampled with the engine's probability mu and trained on with the trainer's pi. The policy ratio must start
at 1, so it is taken against pi before the update instead of mu. The resulting bias of the expectation is corrected by
the weight pi / mu of each decision, truncated from above so that no decision dominates (Ionides 2008; trl's
`vllm_importance_sampling_correction`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.distributed import processes
from mmrl.policy import Policy, Rollout
from mmrl.training.objectives.replay_passes import replayed_log_probs


@dataclass
class ImportanceCorrection:
    """A correction that recomputes log-probabilities with the trainer and weights each decision."""

    policy: Policy
    cap: float  # the largest weight
    _weights: list[Tensor] = field(default_factory=list, init=False)  # of the decisions since the last metrics
    _gap: float = field(default=0.0, init=False)

    def correct(self, rollout: Rollout) -> tuple[Rollout, Tensor]:
        """Return the rollout with the trainer's log-probabilities, and weights [B, T], 0 where masked."""
        step_indices = list(range(rollout.log_probs.shape[1]))
        own = replayed_log_probs(self.policy, rollout, step_indices).where(rollout.mask, rollout.log_probs)
        log_ratio = (own - rollout.log_probs).where(rollout.mask, 0.0)
        weights = log_ratio.exp().where(rollout.mask, 0.0)
        self._weights.append(weights[rollout.mask])
        self._gap = max(self._gap, float(log_ratio.abs().max()))
        return replace(rollout, log_probs=own), weights.clamp(max=self.cap)

    def metrics(self) -> dict[str, float]:
        """Return the differences between engine and trainer since the last call, over all processes."""
        parts = processes.gather(([each.cpu() for each in self._weights], self._gap))
        every = [each for weights, _ in parts for each in weights]
        if not every:
            return {}
        weights = torch.cat(every)
        found = {
            "mismatch/gap": max(gap for _, gap in parts),
            "mismatch/weight": float(weights.clamp(max=self.cap).mean()),
            "mismatch/truncated": float((weights > self.cap).float().mean()),
        }
        self._weights, self._gap = [], 0.0
        return found


def build_importance_correction(algorithm: AlgorithmConfig, policy: Policy) -> ImportanceCorrection | None:
    """Build `algorithm.mismatch`; None: engine and trainer must agree."""
    if not isinstance(algorithm, PolicyGradientConfig) or algorithm.mismatch is None:
        return None
    return ImportanceCorrection(policy, algorithm.mismatch.cap)
