"""How a sampler draws x' from x: the Gaussian of one denoising step.

sigma is the noise level, falling from 1 (noise) to 0 (data); v is the model's output as the scheduler receives it.
`moments` gives mean and standard deviation, sampling adds noise, `log_prob` scores: rollout and replay share both,
so that equal inputs give bit-equal log-probabilities. All arithmetic is float32; hand in float32 tensors.

The log-probability of a step is the *mean* over latent dimensions, not their sum (Flow-GRPO and its successors: that
is why published clip ranges are 1e-4 to 1e-5). The true log-density, and the true score, are D times that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

Level: TypeAlias = float | Tensor
"""A noise level or a standard deviation: a float, or a tensor that broadcasts against [B, ...]."""

NEARLY_ONE = 1 - 1e-5
"""Solvers that take log(1 - sigma) begin at 1 - 1e-6 where they mean 1."""


class Transition(Protocol):
    """The Gaussian of one step. Frozen: the one that sampled is the one that scores."""

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        """Mean [B, ...] and standard deviation of x' given x [B, ...]; std 0 = nothing is decided."""
        ...

    def log_prob(self, x_next: Tensor, mean: Tensor, std: Level) -> Tensor:
        """[B] float32: how likely `x_next` was, as a mean over latent dimensions."""
        ...


class _Gaussian:
    def log_prob(self, x_next: Tensor, mean: Tensor, std: Level) -> Tensor:
        """Gaussian log-density, the *mean* over latent dimensions, [B] float32. The density's own is D times that."""
        return gaussian_log_prob(x_next, mean, std)


def gaussian_log_prob(
    x_next: Tensor,  # [B, ...]
    mean: Tensor,  # [B, ...]
    std: Level,
) -> Tensor:  # [B] float32
    """Log-density of N(mean, std²) at `x_next`, averaged over all dimensions but the first."""
    log_std = std.float().log() if isinstance(std, Tensor) else math.log(std)
    each = -((x_next.float() - mean.float()) ** 2) / (2 * std**2) - log_std - 0.5 * math.log(2 * math.pi)
    return each.flatten(1).mean(1)


@dataclass(frozen=True)
class ODE(_Gaussian):
    """The probability-flow ODE by Euler's method, deterministic: its std is 0 and it has no log-probability."""

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        return x + velocity * (sigma_next - sigma), 0.0


@dataclass(frozen=True)
class FlowSDE(_Gaussian):
    """Flow-GRPO's reverse SDE, arXiv:2505.05470. Keeps the flow's marginals as steps shrink.

    Its noise is infinite at sigma = 1; `first_sigma` stands in there, as in the authors' code.
    """

    noise_level: Level
    first_sigma: float  # sigmas[1] of the *full* schedule; another convention shifts the first step's log-prob

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        dt = sigma_next - sigma
        s2 = self.noise_level**2 * sigma / (1 - self._away_from_one(sigma))
        mean = x * (1 + s2 * dt / (2 * sigma)) + velocity * (1 + s2 * (1 - sigma) / (2 * sigma)) * dt
        return mean, (-s2 * dt) ** 0.5

    def _away_from_one(self, sigma: Level) -> Level:
        if isinstance(sigma, Tensor):
            return torch.where(sigma > NEARLY_ONE, self.first_sigma, sigma)
        return self.first_sigma if sigma > NEARLY_ONE else sigma


@dataclass(frozen=True)
class DanceSDE(_Gaussian):
    """DanceGRPO's reverse SDE with constant noise, arXiv:2505.07818. Keeps the flow's marginals as steps shrink."""

    noise_level: Level

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        dt = sigma_next - sigma
        clean = x - velocity * sigma
        minus_score = (x - clean * (1 - sigma)) / sigma**2
        mean = x + velocity * dt + minus_score * (0.5 * self.noise_level**2 * dt)
        return mean, self.noise_level * (-dt) ** 0.5


@dataclass(frozen=True)
class NoisyODE(_Gaussian):
    """Euler's step of the ODE and noise on top, as ReinFlow explores (arXiv:2505.22094).

    Nothing takes the noise back: x' holds more of it than sigma' calls for, so its level should be small.
    """

    noise_level: Level

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        dt = sigma_next - sigma
        return x + velocity * dt, self.noise_level * (-dt) ** 0.5


@dataclass(frozen=True)
class CPS:
    """Coefficients-preserving sampling, arXiv:2509.05952: x' holds exactly the noise that sigma' calls for.

    It does *not* keep the flow's marginals as steps shrink: on Gaussian data of standard deviation 0.5 and with a noise
    level of 0.7 it ends at 0.423 after 400 steps. And what it calls log-probability is not a density.
    """

    noise_level: float  # in [0, 1]

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        std = sigma_next * math.sin(self.noise_level * math.pi / 2)
        clean, noise = x - velocity * sigma, x + velocity * (1 - sigma)
        return clean * (1 - sigma_next) + noise * (sigma_next**2 - std**2) ** 0.5, std

    def log_prob(self, x_next: Tensor, mean: Tensor, std: Level) -> Tensor:
        """-mean((x' - mean)²), [B] float32: the authors' choice. *Not* a log-density: std plays no part."""
        return -((x_next.float() - mean.float()) ** 2).flatten(1).mean(1)


@dataclass(frozen=True)
class DDIM(_Gaussian):
    """DDIM with eta noise for variance-preserving models (arXiv:2010.02502; DDPO and DPOK use eta = 1).

    Here sigma is sqrt(1 - alpha_bar), so that x = sqrt(1 - sigma²) x_0 + sigma noise, and `velocity` is whatever the
    model predicts.
    """

    eta: Level = 0.0
    prediction: Literal["epsilon", "v_prediction", "sample"] = "epsilon"
    clip: float | None = None  # bound of the predicted x_0, for models in pixel space

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        signal, signal_next = (1 - sigma**2) ** 0.5, (1 - sigma_next**2) ** 0.5
        if self.prediction == "epsilon":
            noise, clean = velocity, (x - velocity * sigma) / signal
        elif self.prediction == "v_prediction":
            noise, clean = velocity * signal + x * sigma, x * signal - velocity * sigma
        elif self.prediction == "sample":
            noise, clean = (x - velocity * signal) / sigma, velocity
        else:
            raise ValueError(f"{self.prediction} is no prediction of a variance-preserving model")
        if self.clip is not None:
            clean = clean.clamp(-self.clip, self.clip)
        std = self.eta * (sigma_next / sigma) * (1 - (signal / signal_next) ** 2) ** 0.5
        return clean * signal_next + noise * (sigma_next**2 - std**2) ** 0.5, std


@dataclass(frozen=True)
class Native(_Gaussian):
    """The transition of the scheduler itself; its family (`scheduler_families`) computes the moments."""

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        raise TypeError("only a scheduler's own step knows these moments")
