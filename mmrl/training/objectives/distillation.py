"""Distillation on the policy's own answers: the divergence of each sampled token from a teacher, or its negative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.aggregation import aggregation_total, aggregation_weights
from mmrl.algorithms.kl import kl_k1_loss, kl_k2, kl_k3, kl_weighted_k3
from mmrl.config.algorithms.distill import DistillConfig, GateConfig
from mmrl.policy import Capability, Policy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs, trained_decisions
from mmrl.training.objectives.policy_gradient import merge_duplicates
from mmrl.training.objectives.prepared_scores import PreparedScores
from mmrl.training.objectives.replay_passes import marked_steps

Divergence = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of log-probs, old log-probs, the teacher's log-probs and mask, all [B, T], to [B, T]."""
DIVERGENCES: dict[str, Divergence] = {
    "k1": kl_k1_loss,
    "k2": lambda log_probs, old, teacher, mask: kl_k2(log_probs, teacher, mask),
    "k3": lambda log_probs, old, teacher, mask: kl_k3(log_probs, teacher, mask),
    "weighted_k3": kl_weighted_k3,
}


class Distillation(Objective):
    """An estimate of KL(policy || teacher) at each token of the policy's own answers, where a gate lets them through.

    Rows that the gate leaves out count in the mean, with a loss of 0, and are not computed. With `away` the loss is the
    negative of the estimate, which repels the policy from the model (CDPO, arXiv:2605.01324).
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS, Capability.TEACHER_FORCE})

    def __init__(self, policy: Policy, config: DistillConfig, teacher: NamedModel) -> None:
        self._policy, self._config, self._teacher = policy, config, teacher
        self._scores: PreparedScores[Tensor] = PreparedScores([teacher])
        self._divergence = DIVERGENCES[config.estimator]

    @classmethod
    def build(cls, config: DistillConfig, inputs: ObjectiveInputs) -> Distillation:
        """Return the objective with its teacher, one of the models of the run."""
        return cls(inputs.policy, config, inputs.models[config.teacher])

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of tokens or rows that could be scored, past the gate or not."""
        return aggregation_total(trained_decisions(batch), self._config.aggregate)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Ask the teacher, replay the answers and backpropagate the divergence.

        Metrics: `reverse_kl`, the mean log-ratio to the teacher as sampled, and `gated_share`, the share of rows that
        the gate lets through.
        """
        passed = passed_decisions(self._config.gate, batch)
        metrics.mean("gated_share", passed.any(1).float().mean().item())
        if not passed.any():
            return
        rollout, mask, weights = self._distinct_rows(batch, passed, share)
        steps = marked_steps(mask)
        teacher = self._scores.get(batch, lambda: self._teacher.log_probs(rollout, steps))
        old, mask, weights = rollout.log_probs[:, steps], mask[:, steps], weights[:, steps]
        metrics.mean("reverse_kl", (old - teacher)[mask].mean().item(), weight=int(mask.sum()))
        total, sign = 0.0, -1.0 if self._config.away else 1.0

        def visit(now: StepOutputs) -> None:
            nonlocal total
            loss = sign * (weights * self._divergence(now.log_probs, old, teacher, mask)).sum()
            loss.backward()
            total += loss.item()
            if rollout.policy_version == self._policy.version:
                metrics.maximum("log_prob_change_max", (now.log_probs.detach() - old)[mask].abs().max().item())

        with torch.enable_grad():
            self._policy.replay(rollout, steps, visit)
        metrics.mean("loss", total / (share or 1.0), weight=share)

    def prepare(self, batches: Sequence[MicroBatch]) -> None:
        """Ask an offloaded teacher before the passes."""
        self._scores.prepare(batches, self._teacher_log_probs)

    def _distinct_rows(self, batch: MicroBatch, passed: Tensor, share: float) -> tuple[Rollout, Tensor, Tensor]:
        """Return the K rows that pass and differ, with their decisions [K, T] and the weights of these."""
        weights = share * aggregation_weights(trained_decisions(batch), self._config.aggregate)
        kept = passed.any(1).nonzero()[:, 0].tolist()
        rollout, mask, weights = batch.rollout.select(kept), passed[kept], weights[kept]
        rows, weights, _ = merge_duplicates(rollout, mask, weights, torch.zeros_like(weights))
        return rollout.select(rows), mask[rows], weights

    def _teacher_log_probs(self, batch: MicroBatch) -> Tensor:
        """Return [K, S], the teacher's log-probabilities of S tokens of the rows that pass and differ."""
        passed = passed_decisions(self._config.gate, batch)
        if not passed.any():
            return torch.zeros(0, 0)
        rollout, mask, _ = self._distinct_rows(batch, passed, 1.0)
        return self._teacher.log_probs(rollout, marked_steps(mask))


def passed_decisions(gate: GateConfig | None, batch: MicroBatch) -> Tensor:
    """Return [B, T] bool: the decisions that are drawn to the teacher's."""
    trained = trained_decisions(batch)
    return trained & passes(gate, batch).to(trained.device)[:, None]


def passes(gate: GateConfig | None, batch: MicroBatch) -> Tensor:
    """Return [B] bool: whether a gate lets each row through; unscored rows never pass one.

    Raises:
        ValueError: there is a gate, and the rows have no total rewards.
    """
    if gate is None:
        return torch.ones_like(batch.scored)
    if batch.totals is None:
        raise ValueError("a gate by reward needs answers that were scored")
    passed = batch.totals.isfinite()
    if gate.at_least is not None:
        passed = passed & (batch.totals >= gate.at_least)
    if gate.below is not None:
        passed = passed & (batch.totals < gate.below)
    return passed
