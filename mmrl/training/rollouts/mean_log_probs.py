"""Rollouts with the mean log-probability over the vocabulary at each token, of the policy that sampled (ROVER)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.policy import Policy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class MeanLogProbs(DerivedSource):
    """A source that replays another source's rollouts before they are learnt from."""

    source: ExperienceSource
    policy: Policy

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience with `mean_log_probs`."""
        found = self.source.collect(iteration, progress, phases)
        with phases("rollout"), torch.no_grad():
            batches = [self._replayed(batch) for batch in found.micro_batches]
        return Experience(batches, found.metrics, found.gap)

    def _replayed(self, batch: MicroBatch) -> MicroBatch:
        if batch.rollout.remote:
            return batch
        return replace(batch, mean_log_probs=mean_log_probs(self.policy, batch.rollout))


def mean_log_probs(policy: Policy, rollout: Rollout) -> Tensor:  # [B, T]
    """Return the mean log-probability over the vocabulary at each decision, under the present parameters.

    Raises:
        ValueError: the decisions of the policy are no tokens.
    """
    found = torch.zeros_like(rollout.log_probs)

    def visit(now: StepOutputs) -> None:
        if now.mean_log_probs is None:
            raise ValueError("rover is for policies that write tokens: this one has no vocabulary to take a mean over")
        found[:, list(now.step_indices)] = now.mean_log_probs

    policy.replay(rollout, range(rollout.mask.shape[1]), visit)
    return found
