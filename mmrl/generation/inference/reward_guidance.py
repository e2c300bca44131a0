"""Guidance by the gradient of rewards at inference, with a weight for each reward.

Flow-NRG (arXiv:2501.13918) samples from p(x) exp(sum of w r(x)): the score at each noise level is shifted by the
gradient of the weighted rewards. There a reward model reads noisy latents; here any differentiable reward scores the
image that the denoiser predicts from them in one step, and the gradient flows back through autoencoder and denoiser.

A guided step is one replay of the pipeline up to this step, so every pipeline that can be a policy is supported, at the
cost of about three steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import Guiders
from mmrl.generation.diffusion.differentiable_loop import BackpropLoop
from mmrl.generation.diffusion.loops import PartialReplayLoop
from mmrl.generation.diffusion.noise_levels import signal_of
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.recording import Recording, join
from mmrl.generation.diffusion.scheduler_families import VEFamily
from mmrl.generation.diffusion.scheduler_hook import Step
from mmrl.policy import BackpropSteps, Rollout, RolloutRequest
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import reward_input


def guided_rollout(
    policy: PipelinePolicy, requests: Sequence[RolloutRequest], seed: int, rewards: Sequence[tuple[Reward, float]]
) -> Rollout:
    """Return a rollout that is guided from its second step on; at the first, pure noise predicts no image.

    Args:
        rewards: differentiable rewards with their weights w.

    Raises:
        RewardError: a reward has no gradient.
        UnsupportedError: the pipeline cannot be differentiated, or the noise level of its latents is not known.
    """
    if missing := ", ".join(reward.name for reward, _ in rewards if not reward.differentiable):
        raise RewardError(f"{missing} has no gradient for guidance; `mmrl rewards show NAME` says which have one")
    with policy.keep_latents(), torch.no_grad():
        rollout = policy.rollout(requests, seed)
    recording: Recording = rollout.recording
    rows = zip(rollout.samples, rollout.media, rollout.group_index.tolist(), strict=True)
    inputs = [reward_input(sample, media, group, sample.id) for sample, media, group in rows]
    for number in range(1, len(recording.next_latents)):
        loop = GuidedStepLoop(policy.guiders, recording, number)
        with torch.enable_grad():
            pictures = policy.run_to_tensor(loop, recording)
            if pictures.ndim != 4:
                raise UnsupportedError("rewards are not differentiated through videos yet")
            total = pictures.new_zeros(())
            for reward, weight in rewards:
                total = total + weight * reward.spec.sign * reward.score_tensor(pictures, inputs).sum().to(pictures)
            gradients = torch.autograd.grad(total, loop.leaves, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise UnsupportedError(f"{type(policy.pipeline).__name__} cuts the graph between latents and pictures")
        recording.next_latents[number] = loop.guided_latents(gradients)
    media = policy.run_to_media(ReplayAllLoop(policy.guiders, recording), recording)
    return replace(rollout, media=media, clean=join(recording.next_latents[-1]))


class GuidedStepLoop(BackpropLoop):
    """A loop that computes one step from leaf latents, and lets the pipeline decode the image that it predicts."""

    def __init__(self, guiders: Guiders, recording: Recording, number: int) -> None:
        skipped = len(recording.next_latents) - 1 - number
        super().__init__(guiders, recording, BackpropSteps(count=1, num_skipped_last=skipped), torch.empty(0))
        self.leaves: list[Tensor] = []
        self._following: list[Tensor] = []
        self._gains: list[float] = []

    def advance(self, step: Step) -> Tensor:
        latents = super().advance(step)
        if self.step == self.first - 1:
            latents = latents.requires_grad_()
            self.leaves.append(latents)
        elif self.step == self.first:
            self._following.append(self.differentiable_step(step).detach())
            self._gains.append(steering_gain(step))
            if self.latent_stream == len(self.leaves) - 1:
                self.recording.guidance[self.step] = self._guiders.read()
        return latents

    def guided_latents(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Return x' of each stream, shifted along the gradient of the rewards."""
        streams = zip(self._following, self._gains, gradients, strict=True)
        return [x if grad is None else (x.float() + gain * grad.float()).to(x.dtype) for x, gain, grad in streams]


class ReplayAllLoop(PartialReplayLoop):
    """A loop that replays every step."""

    def is_computed(self, step: int) -> bool:
        return False

    def advance(self, step: Step) -> Tensor:
        return self.replay_step()


def steering_gain(step: Step) -> float:
    """Return the shift of x' per unit of the reward's gradient at x.

    By Tweedie's formula a score shifted by g shifts x_0 by sigma² / signal g; x' = signal' x_0 + sigma' noise, where
    noise is (x - signal x_0) / sigma. For flows that is the paper's sigma / (1 - sigma) g on the velocity.
    """
    sigma, sigma_next = step.levels[step.index]
    signal, signal_next = signal_of(step.family, sigma), signal_of(step.family, sigma_next)
    gain = (signal_next - sigma_next * signal / sigma) * sigma**2 / signal
    return (
        gain / (signal * signal_next) if isinstance(step.family, VEFamily) else gain
    )  # its x is divided by the signal
