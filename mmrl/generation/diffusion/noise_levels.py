"""How much of a picture is left in its latents at a noise level, and how a picture is brought to one and back."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.scheduler_families import FlowFamily, SchedulerFamily, VEFamily, VPFamily
from mmrl.generation.diffusion.scheduler_hook import Step


def signal_of(family: SchedulerFamily, sigma: float) -> float:
    """The share of x_0 in latents at noise level sigma in [0, 1]: 1 - sigma of flows, sqrt(1 - sigma²) of the others.

    Raises:
        UnsupportedError: the family's schedulers draw their noise themselves, and do not say how much.
    """
    if isinstance(family, FlowFamily):
        return 1 - sigma
    if isinstance(family, VPFamily):
        return float((1 - sigma**2) ** 0.5)
    raise UnsupportedError(f"schedulers of the {family.name} family do not say how much noise their latents hold: set "
                           "policy.scheduler=DDIMScheduler")  # fmt: skip


def noised(family: SchedulerFamily, clean: Tensor, noise: Tensor, sigma: float) -> Tensor:
    """[B, ...] latents at noise level sigma, in the terms of the family's schedulers.

    Those of the ve family count x over its signal.
    """
    signal = signal_of(family, sigma)
    mixed = signal * clean + sigma * noise
    return mixed / signal if isinstance(family, VEFamily) else mixed


def predict_clean(step: Step) -> Tensor:
    """[B, ...] float32 x_0, as the denoiser's answer at this step predicts it.

    Raises:
        UnsupportedError: the scheduler draws its noise itself, and does not say how much.
    """
    deterministic = step.family.deterministic(step.scheduler)
    if deterministic is None:
        raise UnsupportedError(f"{type(step.scheduler).__name__} does not say what x_0 it predicts: set "
                               "policy.scheduler=DDIMScheduler, or leave out the jump")  # fmt: skip
    levels = list(step.levels)
    levels[step.index] = (levels[step.index][0], 0.0)
    return step.family.moments(deterministic, replace(step, levels=levels))[0]


def from_flow_latents(step: Step, noisy: Tensor, sigma: float) -> Tensor:
    """[B, ...] latents as the step takes them, with the noise and picture of (1 - sigma) x_0 + sigma noise."""
    family = step.family
    if not isinstance(family, VPFamily):
        return noisy
    preserving = noisy / ((1 - sigma) ** 2 + sigma**2) ** 0.5
    return preserving / signal_of(family, step.levels[step.index][0]) if isinstance(family, VEFamily) else preserving


def flow_velocity(step: Step) -> Tensor:
    """[B, ...]: noise - x_0, as the denoiser's answer at this step predicts both."""
    family = step.family
    if isinstance(family, FlowFamily):
        return family.velocity(step)
    share, _ = step.levels[step.index]
    clean, signal = predict_clean(step), signal_of(family, share)
    seen = step.sample.float() * (signal if isinstance(family, VEFamily) else 1)
    return (seen - signal * clean) / share - clean
