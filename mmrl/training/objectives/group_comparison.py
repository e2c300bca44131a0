"""Objectives that compare the answers of a group inside the loss: P3O's pairs, and PACS's prediction of outcomes."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_counts
from mmrl.algorithms.importance import LARGEST
from mmrl.algorithms.preference import sequence_log_ratio
from mmrl.algorithms.whole_groups import outcome_prediction_loss, pairwise_policy_loss
from mmrl.config.algorithms.whole_groups import P3OConfig, PACSConfig
from mmrl.policy import Capability, StepOutputs
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.objectives.replay_passes import backpropagate_coupled, marked_steps


class GroupComparison(Objective):
    """A loss on the log-ratios of whole answers and their total rewards, the mean over rows that have a rival.

    All rows of a group must lie in one micro-batch. Metrics: `ratio_mean` and `ratio_max`, of whole answers,
    and `entropy`, of tokens.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def uses_copies(self) -> bool:
        """Return False: ratios are to the log-probabilities as sampled."""
        return False

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of scored rows whose group has another one."""
        return int(_comparable(batch).sum())

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay all rows of the groups that can be compared, and backpropagate through their log-ratios."""
        rollout, comparable = batch.rollout, _comparable(batch).to(batch.rollout.mask.device)
        mask = rollout.mask & comparable[:, None]
        step_indices = marked_steps(mask)
        if not step_indices:
            return
        mask, old = mask[:, step_indices], rollout.log_probs[:, step_indices]
        totals = _totals(batch).to(mask.device).where(comparable, math.nan)

        def loss(log_probs: Tensor) -> Tensor:
            if rollout.policy_version == self._policy.version:
                metrics.maximum("log_prob_change_max", (log_probs.detach() - old)[mask].abs().max().item())
            log_ratio = sequence_log_ratio(log_probs, old, mask)
            ratio = log_ratio.detach()[comparable].clamp(max=LARGEST).exp()
            metrics.mean("ratio_mean", ratio.mean().item(), weight=len(ratio))
            metrics.maximum("ratio_max", ratio.max().item())
            terms = self._terms(log_ratio, totals, rollout.group_index.to(mask.device), metrics)[comparable]
            metrics.mean("loss", terms.mean().item(), weight=len(terms))
            return share * terms.mean()

        def observe(now: StepOutputs) -> None:
            if now.entropy is not None:
                known = rollout.mask[:, list(now.step_indices)] & comparable[:, None]
                metrics.mean("entropy", now.entropy.detach()[known].mean().item(), weight=float(known.sum()))

        backpropagate_coupled(self._policy, rollout, step_indices, loss, observe)

    @abstractmethod
    def _terms(self, log_ratio: Tensor, totals: Tensor, group_index: Tensor, metrics: MetricAccumulator) -> Tensor:
        """Return the terms [B] of the loss; all arguments are [B], and `totals` is NaN in rows without a rival."""


class PairwisePolicyGradient(GroupComparison):
    """P3O: differences of rewards in pairs, and clipped ratios of trajectories (arXiv:2310.00212)."""

    _config: P3OConfig

    def _terms(self, log_ratio: Tensor, totals: Tensor, group_index: Tensor, metrics: MetricAccumulator) -> Tensor:
        log_ratio = log_ratio.clamp(max=LARGEST)
        outside = (log_ratio.detach().exp() - 1).abs() > self._config.clip
        known = totals.isfinite()
        metrics.mean("clip_fraction", outside[known].float().mean().item(), weight=int(known.sum()))
        return pairwise_policy_loss(log_ratio, totals, group_index, self._config.clip)


class OutcomePrediction(GroupComparison):
    """PACS: whether an answer is right is predicted from its log-ratio (arXiv:2509.02522).

    Metric: `right_share`, of the answers whose total reward reaches `threshold`.
    """

    _config: PACSConfig

    def _terms(self, log_ratio: Tensor, totals: Tensor, group_index: Tensor, metrics: MetricAccumulator) -> Tensor:
        known = totals.isfinite()
        right = (totals >= self._config.threshold).to(log_ratio.dtype).where(known, math.nan)
        metrics.mean("right_share", right[known].mean().item(), weight=int(known.sum()))
        return outcome_prediction_loss(log_ratio, right, group_index, self._config.beta, self._config.balanced)


def _totals(batch: MicroBatch) -> Tensor:
    if batch.totals is None:
        raise ValueError("answers are compared by their rewards, and the rows of this micro-batch were not scored")
    return batch.totals.float()


def _comparable(batch: MicroBatch) -> Tensor:
    """[B] bool: scored rows with decisions, whose group has another such row."""
    usable = batch.scored & batch.rollout.mask.any(1).to(batch.scored.device)
    values = torch.zeros(len(usable)).where(usable.cpu(), math.nan)
    return usable & (group_counts(values, batch.rollout.group_index.cpu()) > 1).to(usable.device)
