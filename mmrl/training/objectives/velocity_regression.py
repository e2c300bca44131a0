"""Learning on noised samples: DiffusionNFT, advantage-weighted matching, imitation of pictures, DPO of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.forward_process import interpolate, nft_old_decay, velocity_mse
from mmrl.components import load_reference
from mmrl.config.algorithms.base import NoiseLevelsConfig
from mmrl.config.algorithms.forward_process import ForwardProcessConfig, OldPolicyConfig
from mmrl.distributed.layout import layout_of
from mmrl.policy import Capability, VelocityPolicy
from mmrl.rollout import Rollout
from mmrl.training.ema import ParameterCopy
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.objectives.replay_passes import backpropagate
from mmrl.training.objectives.velocity_losses import Noised, PairLoss, VelocityLoss

EARLIEST, LATEST = 0.02, 0.98
"""Places among the noise levels are drawn between these: at 0 there is nothing to predict, at 1 nothing to see."""


class VelocityRegression(Objective):
    """A regression of velocities on finished samples that are noised again; it needs no log-probabilities.

    Noise levels are shared by a micro-batch, and each one's backward pass runs before the next, so that one graph of
    the model lives at a time. The loss determines what is compared (`velocity_losses`).
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PREDICT_VELOCITY})

    def __init__(self, policy: VelocityPolicy, config: NoiseLevelsConfig) -> None:
        self._policy = policy
        self._num_noise_levels = config.num_noise_levels
        loss = config.velocity_loss
        self._loss: VelocityLoss = (load_reference(loss) if isinstance(loss, str) else loss)(config)
        self._kl = config.kl.coef if isinstance(config, ForwardProcessConfig) else 0.0
        self._schedule: OldPolicyConfig | None = getattr(config, "old", None)
        self._old = None
        if self._schedule is not None:
            self._old = ParameterCopy(policy.parameters_to_train(), layout_of(policy), used_in_batches=True)
        self._samples_from_reference = getattr(config, "samples_from", "policy") == "reference"

    def sampling_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the old policy samples, if there is one, or the reference."""
        if self._samples_from_reference:
            return self._policy.reference()
        return nullcontext() if self._old is None else self._old.in_place()

    def uses_copies(self) -> bool:
        """Return True with an old policy, a penalty, or a loss that compares with the reference."""
        compared = self._loss.needs_reference or self._kl or self._samples_from_reference
        return self._old is not None or bool(compared)

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of rows that are trained on, or of pairs."""
        return self._loss.loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate the loss at `num_noise_levels` random noise levels."""
        clean = batch.rollout.clean
        if clean is None:
            raise ValueError("velocities are compared on rollouts that keep their last latent, and this one does not")
        rows = self._loss.rows(batch).to(clean.device)
        if not rows.any():
            return
        sources = _noise_sources(batch.rollout) if self._loss.shares_noise else None
        like = clean if sources is None else clean[: int(sources.max()) + 1]
        for sigma, drawn in self.noise_levels(like, seed):
            noise = drawn if sources is None else drawn[sources]
            with torch.enable_grad():
                at = self._velocities(batch.rollout, clean, noise, sigma)
                loss = self._loss.terms(batch, at, metrics).mean()
                if self._kl and at.reference is not None:
                    distance = velocity_mse(at.velocity, at.reference)[rows].mean()
                    loss = loss + self._kl * distance
                    metrics.mean("kl", distance.item())
            backpropagate(loss * (share / self._num_noise_levels), self._policy)
            metrics.mean("loss", loss.item())
            if at.old is not None:
                metrics.mean("old_distance", velocity_mse(at.velocity.detach(), at.old).mean().item())

    def noise_levels(self, like: Tensor, seed: int) -> Iterator[tuple[float, Tensor]]:
        """`num_noise_levels` noise levels, spread evenly over the range (stratified), with float32 noise for each."""
        generator, count = torch.Generator(device="cpu").manual_seed(seed), self._num_noise_levels
        for number in range(count):
            place = (number + torch.rand((), generator=generator).item()) / count
            sigma = self._policy.noise_level(EARLIEST + (LATEST - EARLIEST) * place)
            yield sigma, torch.randn(like.shape, generator=generator).to(like.device)

    def begin(self) -> None:
        """Let the old policy be the policy as it is now."""
        if self._old is not None:
            self._old.follow(0.0)

    def finish_iteration(self, updates: int) -> None:
        """The old policy follows, and the running mean of rewards is committed."""
        if self._old is not None and self._schedule is not None:
            schedule = self._schedule
            self._old.follow(nft_old_decay(updates, flat=schedule.flat, rate=schedule.rate, cap=schedule.cap))
        if isinstance(self._loss, PairLoss):
            self._loss.pair_terms.commit()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the old policy's parameters, or the state of the loss."""
        if isinstance(self._loss, PairLoss):
            return self._loss.pair_terms.state_dict()
        return {} if self._old is None else self._old.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if isinstance(self._loss, PairLoss):
            self._loss.pair_terms.load_state_dict(state)
        elif self._old is not None:
            self._old.load_state_dict(state)

    def _velocities(self, rollout: Rollout, clean: Tensor, noise: Tensor, sigma: float) -> Noised:
        """Return the velocities that the loss compares; those without gradients are computed first."""
        policy, single = self._policy, clean.float()
        noisy = interpolate(single, noise, sigma).to(clean.dtype)
        old = reference = None
        moved = self._old is not None and not self._old.is_live()
        if self._old is not None and moved:
            with torch.no_grad(), self._old.in_place():
                old = policy.predict_velocity(rollout, noisy, sigma)
        if self._loss.needs_reference or self._kl:
            with torch.no_grad(), policy.reference():
                reference = policy.predict_velocity(rollout, noisy, sigma)
        velocity = policy.predict_velocity(rollout, noisy, sigma)
        if self._old is not None and not moved:  # the same parameters, so the same velocity: a pass is saved
            old = velocity.detach()
        return Noised(single, noise, noisy, sigma, velocity, old, reference)


def _noise_sources(rollout: Rollout) -> Tensor:
    """Return [B] int64: the index of the noise of each row, one for each group."""
    return torch.unique(rollout.group_index, return_inverse=True)[1]
