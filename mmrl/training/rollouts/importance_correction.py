"""Importance sampling for rollout engines that differ from the trainer in kernels, precision or weights.

An answer is sampled with the engine's probability mu and trained on with the trainer's pi. The policy ratio must start
at 1, so it is taken against pi before the update instead of mu. The resulting bias of the expectation is corrected by
the weight pi / mu of each decision or answer, limited so that none dominates (`engine_weights`; Ionides 2008; trl's
`vllm_importance_sampling_correction`). Beyond `max_gap` the two do not compute the same policy, and the run stops.

With answers of older parameters this is the decoupled objective of AReaL (arXiv:2505.24298): ratios are relative to the
trainer's log-probabilities before the update (the proximal policy), and decisions are weighted by the probability under
the trainer over that under the parameters or the engine that sampled them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from mmrl.algorithms.importance import engine_weights
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.distributed import processes
from mmrl.errors import RunError
from mmrl.policy import Policy
from mmrl.rollout import Rollout
from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.replay_passes import replayed_log_probs
from mmrl.training.run.timers import Phases


@dataclass
class ImportanceCorrection:
    """A correction that recomputes log-probabilities with the trainer and weights each decision."""

    policy: Policy
    cap: float  # the largest weight
    level: Literal["token", "sequence"] = "token"
    beyond: Literal["truncate", "mask"] = "truncate"
    max_gap: float | None = None  # the largest mean of |log-prob difference| over a rollout
    _weights: list[Tensor] = field(default_factory=list, init=False)  # of the decisions since the last metrics
    _limited: list[Tensor] = field(default_factory=list, init=False)  # whether the cap applied to each of them
    _gaps: list[Tensor] = field(default_factory=list, init=False)  # the log-prob difference of each of them

    def correct(self, rollout: Rollout) -> tuple[Rollout, Tensor]:
        """Return the rollout with the trainer's log-probabilities, and weights [B, T], 0 where masked.

        Raises:
            RunError: engine and trainer differ by more than `max_gap`.
        """
        step_indices = list(range(rollout.log_probs.shape[1]))
        own = replayed_log_probs(self.policy, rollout, step_indices).where(rollout.mask, rollout.log_probs)
        log_ratio = (own - rollout.log_probs).where(rollout.mask, 0.0)
        gaps = log_ratio[rollout.mask].abs().cpu()
        self._check(gaps)
        weights, limited = engine_weights(log_ratio, rollout.mask, self.cap, self.level, self.beyond)
        self._weights.append(weights[rollout.mask].cpu())
        self._limited.append(limited[rollout.mask].cpu())
        self._gaps.append(gaps)
        return replace(rollout, log_probs=own), weights

    def metrics(self) -> dict[str, float]:
        """Return the differences between engine and trainer since the last call, over all processes."""
        parts = processes.gather((self._weights, self._limited, self._gaps))
        weights, limited, gaps = ([each for part in parts for each in part[kind]] for kind in range(3))
        if not gaps:
            return {}
        self._weights, self._limited, self._gaps = [], [], []
        return {
            "mismatch/gap": float(torch.cat(gaps).max()),
            "mismatch/mean_gap": float(torch.cat(gaps).mean()),
            "mismatch/weight": float(torch.cat(weights).mean()),
            "mismatch/truncated": float(torch.cat(limited).float().mean()),
        }

    def _check(self, gaps: Tensor) -> None:
        mean = float(gaps.mean())
        if self.max_gap is not None and not mean <= self.max_gap:
            raise RunError(
                f"engine and trainer differ by {mean:.1e} in the mean of a rollout's {len(gaps)} log-probabilities "
                f"(algorithm.mismatch.max_gap is {self.max_gap:.1e}): they do not compute the same policy. "
                "No parameter was updated with it"
            )


def build_importance_correction(
    algorithm: AlgorithmConfig, policy: Policy, max_gap: float | None = None
) -> ImportanceCorrection | None:
    """Build `algorithm.mismatch`; None: engine and trainer must agree. `max_gap` is for where it has none."""
    if not isinstance(algorithm, PolicyGradientConfig) or algorithm.mismatch is None:
        return None
    config = algorithm.mismatch
    return ImportanceCorrection(policy, config.cap, config.level, config.beyond, config.max_gap or max_gap)


@dataclass(frozen=True)
class CorrectedRollouts(DerivedSource):
    """A source that corrects the sampled rows of another source."""

    source: ExperienceSource
    correction: ImportanceCorrection

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the corrected experience. Adds the metrics of the correction.

        A replay gap that the source measured is that of its engine, which the correction is for: it becomes the metric
        `mismatch/engine_gap`.
        """
        found = self.source.collect(iteration, progress, phases)
        with phases("rollout"):
            batches = [corrected(batch, self.correction) for batch in found.micro_batches]
        gap = {} if found.gap is None else {"mismatch/engine_gap": found.gap}
        return Experience(batches, found.metrics | self.correction.metrics() | gap)


def corrected(batch: MicroBatch, correction: ImportanceCorrection) -> MicroBatch:
    """Return a batch with the trainer's log-probabilities, of its present version, and weighted advantages."""
    if not batch.sampled or batch.rollout.remote:
        return batch
    rollout, weights = correction.correct(batch.rollout)
    rollout = replace(rollout, policy_version=correction.policy.version)
    return replace(batch, rollout=rollout, step_advantages=batch.step_advantages * weights)
