"""Distillation along the policy's own denoising trajectories: each step is drawn to the mean of a teacher's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.aggregation import aggregation_total, aggregation_weights
from mmrl.algorithms.kl import gaussian_mean_distance
from mmrl.config.algorithms.distill import DistillConfig
from mmrl.policy import Capability, Policy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs, trained_decisions
from mmrl.training.objectives.distillation import passed_decisions
from mmrl.training.objectives.prepared_scores import PreparedScores
from mmrl.training.objectives.replay_passes import backpropagate, marked_steps


class StepDistillation(Objective):
    """The KL divergence of each denoising step from a teacher's, both from the state that the policy visited.

    Steps of both are Gaussians of one spread, so it is their squared distance over twice the variance, here a mean over
    latent dimensions (DiffusionOPD, arXiv:2605.15055). Rows that the gate leaves out count in the mean, with a loss
    of 0.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS, Capability.MOMENTS})

    def __init__(self, policy: Policy, config: DistillConfig, teachers: Mapping[str, NamedModel]) -> None:
        """`teachers` are the models that `config` names, by name."""
        self._policy, self._config, self._teachers = policy, config, teachers
        self._scores: PreparedScores[dict[int, Tensor]] = PreparedScores(teachers.values())

    @classmethod
    def build(cls, config: DistillConfig, inputs: ObjectiveInputs) -> StepDistillation:
        """Return the objective with its teachers, models of the run."""
        names = {config.teacher, *config.teachers.values()} & inputs.models.keys()
        return cls(inputs.policy, config, {name: inputs.models[name] for name in names})

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of steps or rows that could be scored, past the gate or not."""
        return aggregation_total(trained_decisions(batch), self._config.aggregate)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay the steps under the teachers, then under the policy, and backpropagate each distance at once.

        Metrics: `distance`, the mean over the steps that are trained on, and `gated_share`.
        """
        rollout, mask = batch.rollout, passed_decisions(self._config.gate, batch)
        weights = share * aggregation_weights(trained_decisions(batch), self._config.aggregate)
        metrics.mean("gated_share", mask.any(1).float().mean().item())
        steps = marked_steps(mask)
        if not steps:
            return
        targets = self._scores.get(batch, lambda: self._means(rollout, steps))
        total = 0.0

        def visit(now: StepOutputs) -> None:
            nonlocal total
            if now.mean is None or now.std is None:
                raise ValueError("denoising steps are compared by their means, and this policy's replay has none")
            here = list(now.step_indices)
            kept = mask[:, here]
            apart = [
                gaussian_mean_distance(now.mean[:, k], targets[step], now.std[:, k]) for k, step in enumerate(here)
            ]
            distance = torch.stack(apart, dim=1)
            loss = (weights[:, here] * distance).where(kept, 0.0).sum()
            backpropagate(loss, self._policy)
            total += loss.item()
            metrics.mean("distance", distance.detach()[kept].mean().item(), weight=int(kept.sum()))
            if rollout.policy_version == self._policy.version:
                moved = (now.log_probs.detach() - rollout.log_probs[:, here])[kept]
                metrics.maximum("log_prob_change_max", moved.abs().max().item())

        with torch.enable_grad():
            self._policy.replay(rollout, steps, visit)
        metrics.mean("loss", total / (share or 1.0), weight=share)

    def prepare(self, batches: Sequence[MicroBatch]) -> None:
        """Ask offloaded teachers before the passes."""
        self._scores.prepare(batches, self._teacher_means)

    def _teacher_means(self, batch: MicroBatch) -> dict[int, Tensor]:
        """Return the means of the steps that are drawn to the teachers'."""
        return self._means(batch.rollout, marked_steps(passed_decisions(self._config.gate, batch)))

    def _means(self, rollout: Rollout, steps: Sequence[int]) -> dict[int, Tensor]:
        """Return the mean [B, ...] of each step under the teacher of each row."""
        names = [self._config.teachers.get(sample.source, self._config.teacher) for sample in rollout.samples]
        found: dict[int, Tensor] = {}
        for name in dict.fromkeys(names):
            rows = torch.tensor([each == name for each in names], device=rollout.mask.device)

            def keep(now: StepOutputs, rows: Tensor = rows) -> None:
                assert now.mean is not None
                for k, step in enumerate(now.step_indices):
                    mean = now.mean[:, k].detach()
                    chosen = rows.view(-1, *[1] * (mean.dim() - 1))
                    found[step] = mean.where(chosen, found[step]) if step in found else mean

            self._teachers[name].replay(rollout, steps, keep)
        return found
