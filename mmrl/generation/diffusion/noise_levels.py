"""Signal and noise at a noise level: adding noise to x_0, predicting x_0, and conversion to and from a flow's terms."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.scheduler_families import FlowFamily, SchedulerFamily, VEFamily, VPFamily
from mmrl.generation.diffusion.scheduler_hook import SchedulerStep


def signal_of(family: SchedulerFamily, sigma: float) -> float:
    """Return the factor of x_0 in latents at noise level sigma in [0, 1]: 1 - sigma in flows, else sqrt(1 - sigma²).

    Raises:
        UnsupportedError: the noise level of the family's latents is not known.
    """
    if isinstance(family, FlowFamily):
        return 1 - sigma
    if isinstance(family, VPFamily):
        return float((1 - sigma**2) ** 0.5)
    raise UnsupportedError(f"schedulers of the {family.name} family do not say how much noise their latents hold: set "
                           "policy.scheduler=DDIMScheduler")  # fmt: skip


def add_noise(family: SchedulerFamily, clean: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """Return latents [B, ...] at noise level sigma in the family's terms; the ve family divides x by its signal."""
    signal = signal_of(family, sigma)
    mixed = signal * clean + sigma * noise
    return mixed / signal if isinstance(family, VEFamily) else mixed


def predict_clean(step: SchedulerStep) -> Tensor:
    """Return x_0 [B, ...] float32 as predicted by the denoiser's output at this step.

    Raises:
        UnsupportedError: the noise level of the scheduler's latents is not known.
    """
    deterministic = step.family.deterministic(step.scheduler)
    if deterministic is None:
        raise UnsupportedError(f"{type(step.scheduler).__name__} does not say what x_0 it predicts: set "
                               "policy.scheduler=DDIMScheduler, or leave out the jump")  # fmt: skip
    levels = list(step.levels)
    levels[step.index] = (levels[step.index][0], 0.0)
    return step.family.moments(deterministic, replace(step, levels=levels))[0]


def from_flow_latents(step: SchedulerStep, noisy: Tensor, sigma: float) -> Tensor:
    """Return the latents [B, ...] of the step's family with the x_0 and noise of (1 - sigma) x_0 + sigma noise."""
    family = step.family
    if not isinstance(family, VPFamily):
        return noisy
    preserving = noisy / ((1 - sigma) ** 2 + sigma**2) ** 0.5
    return preserving / signal_of(family, step.levels[step.index][0]) if isinstance(family, VEFamily) else preserving


def to_flow_latents(step: SchedulerStep) -> tuple[Tensor, float]:
    """Return the latents [B, ...] of a step as (1 - sigma) x_0 + sigma noise, and sigma: `from_flow_latents` backwards.

    Raises:
        UnsupportedError: the noise level of the family's latents is not known.
    """
    family, share = step.family, step.levels[step.index][0]
    signal = signal_of(family, share)
    if not isinstance(family, VPFamily):
        return step.sample, share
    preserving = step.sample * signal if isinstance(family, VEFamily) else step.sample
    return preserving / (signal + share), share / (signal + share)


def flow_velocity(step: SchedulerStep) -> Tensor:
    """Return noise - x_0 [B, ...] as predicted by the denoiser's output at this step."""
    family = step.family
    if isinstance(family, FlowFamily):
        return family.velocity(step)
    share, _ = step.levels[step.index]
    clean, signal = predict_clean(step), signal_of(family, share)
    preserving = step.sample.float() * (signal if isinstance(family, VEFamily) else 1)
    return (preserving - signal * clean) / share - clean
