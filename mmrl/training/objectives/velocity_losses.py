"""The losses of velocities at one noise level: one class for each algorithm on noised samples.

`VelocityRegression` samples noise levels, computes velocities and backpropagates; a loss selects rows and returns the
terms whose mean is minimised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.forward_process import (
    matching_error,
    matching_log_ratio,
    nft_loss,
    optimality,
    velocity_mse,
    weighted_error,
)
from mmrl.algorithms.policy_losses import clipped_policy_loss
from mmrl.config.algorithms.base import MatchingConfig
from mmrl.config.algorithms.forward_process import AWMConfig, DiffusionNFTConfig
from mmrl.config.algorithms.preference import DPOConfig, OnlineDPOConfig
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.preference_pairs import PairTerms

PICTURE_BETA = 100.0
"""DPO's beta where none is set: ours, and not tuned."""


@dataclass(frozen=True)
class Noised:
    """A micro-batch at one noise level, with the velocities of up to three policies."""

    clean: Tensor  # [B, ...] float32
    noise: Tensor  # [B, ...] float32
    noisy: Tensor  # [B, ...] as the policies saw it
    sigma: float
    velocity: Tensor  # [B, ...] of the trained policy, with gradients
    old: Tensor | None  # [B, ...] of the sampling policy, where it differs from the trained one
    reference: Tensor | None  # [B, ...] where `needs_reference`

    def error(self, velocity: Tensor) -> Tensor:
        """Return [B] the matching error of a velocity."""
        return matching_error(velocity, self.clean, self.noise)


class VelocityLoss(ABC):
    """The loss of an algorithm at one noise level; unless it says otherwise, a mean over the scored rows."""

    shares_noise: bool = False
    """True: the rows of a group get the same noise."""
    needs_reference: bool = False

    def rows(self, batch: MicroBatch) -> Tensor:
        """Return [B] bool: the rows that are trained on."""
        return batch.scored

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of terms."""
        return int(self.rows(batch).sum())

    @abstractmethod
    def terms(self, batch: MicroBatch, at: Noised, metrics: MetricAccumulator) -> Tensor:
        """Return the terms [N]; their mean is minimised."""


class NFTLoss(VelocityLoss):
    """DiffusionNFT (arXiv:2509.16117)."""

    def __init__(self, config: DiffusionNFTConfig) -> None:
        if config.advantage.clip is None:
            raise ValueError("DiffusionNFT needs algorithm.advantage.clip")
        self._config, self._clip = config, config.advantage.clip

    def terms(self, batch: MicroBatch, at: Noised, metrics: MetricAccumulator) -> Tensor:
        rho, config = optimality(batch.advantages, self._clip).to(at.clean.device), self._config
        old = _provided(at.old, "the sampling policy's velocity")
        each = nft_loss(at.velocity, old, at.noisy, at.sigma, at.clean, rho, config.beta, negatives=config.negatives)
        return each[batch.scored.to(each.device)]


class AWMLoss(VelocityLoss):
    """Advantage-weighted matching (arXiv:2509.25050): minus the matching error is the log-prob of a policy gradient.

    As in scxue/advantage_weighted_matching scripts/train_sd3_awm.py@12b1397: each noise level has a separate ratio
    (`exp_first`), advantages are divided by their clip, and old and new errors are taken on the same noise. There, a
    second, slow policy is what `old_kl` keeps near while the trained one samples; here it is the one that samples.
    """

    def __init__(self, config: AWMConfig) -> None:
        self._config = config

    def terms(self, batch: MicroBatch, at: Noised, metrics: MetricAccumulator) -> Tensor:
        config, scored = self._config, batch.scored.to(at.clean.device)
        old_velocity = _provided(at.old, "the sampling policy's velocity")
        now, old = (
            -weighted_error(at.error(velocity)[scored], at.sigma, config.weighting)[:, None]
            for velocity in (at.velocity, old_velocity)
        )
        advantages = batch.advantages.to(now)[scored][:, None] / (config.advantage.clip or 1.0)
        everything = torch.ones_like(now, dtype=torch.bool)
        found = clipped_policy_loss(now, old, advantages, everything, config.clip.low, config.clip.high)
        count = len(now)
        metrics.mean("ratio_mean", found.ratio.mean().item(), weight=count)
        metrics.maximum("ratio_max", found.ratio.max().item())
        metrics.mean("clip_fraction", found.clipped.float().mean().item(), weight=count)
        metrics.mean("matching_error", at.error(at.velocity.detach())[scored].mean().item(), weight=count)
        if not config.old_kl:
            return found.loss[:, 0]
        return found.loss[:, 0] + config.old_kl * velocity_mse(at.velocity, old_velocity)[scored]


class ImitationLoss(VelocityLoss):
    """The matching error of samples, weighed by their advantages: SFT, rejection sampling, reward weights."""

    def __init__(self, config: MatchingConfig) -> None:
        self._config = config

    def rows(self, batch: MicroBatch) -> Tensor:
        if bool((batch.advantages[batch.scored] < 0).any()):
            raise ValueError("imitation takes advantages >= 0, and some are negative: those are for awm")
        return batch.scored & (batch.advantages > 0)

    def terms(self, batch: MicroBatch, at: Noised, metrics: MetricAccumulator) -> Tensor:
        rows = self.rows(batch).to(at.clean.device)
        error = at.error(at.velocity)[rows]
        metrics.mean("matching_error", error.detach().mean().item(), weight=len(error))
        metrics.mean("imitated_share", rows.float().mean().item())
        return batch.advantages.to(error)[rows] * weighted_error(error, at.sigma, self._config.weighting)


class PairLoss(VelocityLoss):
    """DPO and its relatives on pictures: Diffusion-DPO (arXiv:2311.12908), Flow-DPO (arXiv:2501.13918).

    Two rows of a group are a pair if their advantages differ by more than `margin`. All rows of a group share their
    noise, so one that is in several pairs is computed once.
    """

    shares_noise = True
    needs_reference = True

    def __init__(self, config: DPOConfig) -> None:
        self._config, self._margin = config, config.margin if isinstance(config, OnlineDPOConfig) else 0.0
        self.pair_terms = PairTerms(config, config.beta or PICTURE_BETA)

    def rows(self, batch: MicroBatch) -> Tensor:
        chosen, rejected = self._pairs(batch)
        found = torch.zeros_like(batch.scored)
        found[chosen] = found[rejected] = True
        return found

    def loss_normalizer(self, batch: MicroBatch) -> float:
        return len(self._pairs(batch)[0])

    def terms(self, batch: MicroBatch, at: Noised, metrics: MetricAccumulator) -> Tensor:
        reference = _provided(at.reference, "the reference's velocity")
        now, before = (
            weighted_error(at.error(velocity), at.sigma, self._config.weighting)
            for velocity in (at.velocity, reference)
        )
        log_ratio = matching_log_ratio(now, before)
        chosen, rejected = (rows.to(log_ratio.device) for rows in self._pairs(batch))
        metrics.mean("error_chosen", now.detach()[chosen].mean().item(), weight=len(chosen))
        metrics.mean("error_rejected", now.detach()[rejected].mean().item(), weight=len(chosen))
        return self.pair_terms(log_ratio[chosen], log_ratio[rejected], metrics)

    def _pairs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return [P], [P] int64: the rows of the better and of the worse answers."""
        advantages, group, scored = batch.advantages.cpu(), batch.rollout.group_index.cpu(), batch.scored.cpu()
        better = advantages[:, None] - advantages[None, :] > self._margin
        both = scored[:, None] & scored[None, :] & (group[:, None] == group[None, :])
        chosen, rejected = (better & both).nonzero(as_tuple=True)
        return chosen, rejected


def _provided(velocity: Tensor | None, what: str) -> Tensor:
    if velocity is None:
        raise ValueError(f"{what} was not computed")
    return velocity
