"""Rollouts whose importance correction is computed with the parameters of the update that learns from them.

With answers of older parameters this is the decoupled objective of AReaL (arXiv:2505.24298): ratios are relative to the
trainer's log-probabilities before the update (the proximal policy), and decisions are weighted by the probability under
the trainer over that under the parameters or the engine that sampled them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.rollouts.importance_correction import ImportanceCorrection
from mmrl.training.run.timers import Phases


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
