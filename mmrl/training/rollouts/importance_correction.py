"""Rollouts whose engine computes otherwise than the trainer does: another kernel, another precision, other weights.

An answer was drawn with the engine's probability mu, and is learnt from with the trainer's pi. Its ratio must start at
1, so pi before the update takes the place of mu; and what is thereby wrong with the expectation is put right by the
weight pi / mu of each decision, truncated from above so that no decision weighs too much (truncated importance
sampling, Ionides 2008; trl's `vllm_importance_sampling_correction`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmrl.config.algorithm import AlgorithmConfig, PolicyGradientConfig
from mmrl.policy import Policy, Rollout
from mmrl.training.objectives.replay_passes import replayed_log_probs


@dataclass
class ImportanceCorrection:
    """Asks the trainer how likely every rollout was, and weighs its decisions."""

    policy: Policy
    cap: float  # of a weight
    _weights: list[Tensor] = field(default_factory=list, init=False)  # of the decisions since the last metrics
    _gap: float = field(default=0.0, init=False)

    def correct(self, rollout: Rollout) -> tuple[Rollout, Tensor]:
        """The rollout with the trainer's log-probabilities, and the weight of each decision [B, T], 0 where masked."""
        step_indices = list(range(rollout.log_probs.shape[1]))
        own = replayed_log_probs(self.policy, rollout, step_indices).where(rollout.mask, rollout.log_probs)
        apart = (own - rollout.log_probs).where(rollout.mask, 0.0)
        weights = apart.exp().where(rollout.mask, 0.0)
        self._weights.append(weights[rollout.mask])
        self._gap = max(self._gap, float(apart.abs().max()))
        return replace(rollout, log_probs=own), weights.clamp(max=self.cap)

    def metrics(self) -> dict[str, float]:
        """How far engine and trainer are apart since they were last asked for."""
        if not self._weights:
            return {}
        weights = torch.cat(self._weights)
        found = {
            "mismatch/gap": self._gap,
            "mismatch/weight": float(weights.clamp(max=self.cap).mean()),
            "mismatch/truncated": float((weights > self.cap).float().mean()),
        }
        self._weights, self._gap = [], 0.0
        return found


def build_mismatch(algorithm: AlgorithmConfig, policy: Policy) -> ImportanceCorrection | None:
    """As `algorithm.mismatch` says; None: engine and trainer must agree."""
    if not isinstance(algorithm, PolicyGradientConfig) or algorithm.mismatch is None:
        return None
    return ImportanceCorrection(policy, algorithm.mismatch.cap)
