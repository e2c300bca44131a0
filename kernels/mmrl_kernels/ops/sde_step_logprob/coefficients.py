"""The Gaussian of one denoising step, as three numbers: x' ~ N(x_coefficient x + velocity_coefficient v, std²).

Each transition's mean is linear in x and in the model's output v, so a step needs three scalars, computed once in
float64 from the schedule. sigma is the noise level, falling from 1 (noise) to 0 (data).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mmrl_kernels.registry import KernelError

NEARLY_ONE = 1 - 1e-5
"""Solvers that take log(1 - sigma) begin at 1 - 1e-6 where they mean 1."""


@dataclass(frozen=True)
class StepCoefficients:
    """One step's Gaussian; std 0 = nothing is decided."""

    x: float
    velocity: float
    std: float
    is_density: bool = True  # False: the score is -mean((x' - mean)²), as CPS has it, and std only scales the noise


def flow_sde(sigma: float, sigma_next: float, noise_level: float, first_sigma: float) -> StepCoefficients:
    """Flow-GRPO's reverse SDE, arXiv:2505.05470.

    Its noise is infinite at sigma = 1; `first_sigma`, which is sigmas[1] of the *full* schedule, stands in there.

    Raises:
        KernelError: sigma does not fall within 1 >= sigma > sigma_next >= 0.
    """
    dt = _falls(sigma, sigma_next)
    s2 = noise_level**2 * sigma / (1 - (first_sigma if sigma > NEARLY_ONE else sigma))
    pull = s2 / (2 * sigma)
    return StepCoefficients(1 + pull * dt, (1 + pull * (1 - sigma)) * dt, math.sqrt(-s2 * dt))


def dance_sde(sigma: float, sigma_next: float, noise_level: float) -> StepCoefficients:
    """DanceGRPO's reverse SDE with constant noise, arXiv:2505.07818.

    Raises:
        KernelError: as for `flow_sde`.
    """
    dt = _falls(sigma, sigma_next)
    pull = 0.5 * noise_level**2 / sigma
    return StepCoefficients(1 + pull * dt, (1 + pull * (1 - sigma)) * dt, noise_level * math.sqrt(-dt))


def noisy_ode(sigma: float, sigma_next: float, noise_level: float) -> StepCoefficients:
    """Euler's step of the ODE and noise on top, as ReinFlow explores (arXiv:2505.22094).

    Raises:
        KernelError: as for `flow_sde`.
    """
    dt = _falls(sigma, sigma_next)
    return StepCoefficients(1.0, dt, noise_level * math.sqrt(-dt))


def cps(sigma: float, sigma_next: float, noise_level: float) -> StepCoefficients:
    """Coefficients-preserving sampling, arXiv:2509.05952, with `noise_level` in [0, 1].

    What it calls log-probability is -mean((x' - mean)²): *not* a density, and its std plays no part.

    Raises:
        KernelError: as for `flow_sde`.
    """
    _falls(sigma, sigma_next)
    std = sigma_next * math.sin(noise_level * math.pi / 2)
    kept = math.sqrt(sigma_next**2 - std**2)
    return StepCoefficients(1 - sigma_next + kept, kept * (1 - sigma) - sigma * (1 - sigma_next), std, is_density=False)


def ddim(
    sigma: float,
    sigma_next: float,
    eta: float,
    prediction: Literal["epsilon", "v_prediction", "sample"] = "epsilon",
) -> StepCoefficients:
    """DDIM with eta noise for variance-preserving models, arXiv:2010.02502 (DDPO and DPOK use eta = 1).

    Here sigma is sqrt(1 - alpha_bar), and `velocity` is whatever the model predicts. A clipped x_0 (models in pixel
    space) makes the mean nonlinear, so such a step is none of these.

    Raises:
        KernelError: sigma does not fall within 1 > sigma > sigma_next >= 0, or an unknown prediction.
    """
    _falls(sigma, sigma_next)
    if sigma >= 1:
        raise KernelError("ddim: sigma = 1 leaves no signal in x: begin the schedule below it")
    signal, signal_next = math.sqrt(1 - sigma**2), math.sqrt(1 - sigma_next**2)
    std = eta * (sigma_next / sigma) * math.sqrt(1 - (signal / signal_next) ** 2)
    if std > sigma_next:
        raise KernelError(f"ddim: eta = {eta} asks for noise {std:.4f} where sigma_next = {sigma_next} leaves less")
    noise = math.sqrt(sigma_next**2 - std**2)
    if prediction == "epsilon":
        return StepCoefficients(signal_next / signal, noise - signal_next * sigma / signal, std)
    if prediction == "v_prediction":
        return StepCoefficients(signal * signal_next + sigma * noise, signal * noise - sigma * signal_next, std)
    if prediction == "sample":
        return StepCoefficients(noise / sigma, signal_next - noise * signal / sigma, std)
    raise KernelError(f"ddim: prediction {prediction!r}: expected epsilon, v_prediction or sample")


def _falls(sigma: float, sigma_next: float) -> float:
    """The step's dt, which is negative."""
    if not 0 <= sigma_next < sigma <= 1:
        raise KernelError(f"a step goes from a noise level to a lower one within [0, 1]; got {sigma} to {sigma_next}")
    return sigma_next - sigma
