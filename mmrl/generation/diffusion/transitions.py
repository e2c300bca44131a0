"""Transitions: the Gaussian from which one denoising step draws x' given x.

sigma is the noise level, falling from 1 (noise) to 0 (data); v is the model's output as the scheduler receives it.
`moments` returns the mean and standard deviation, sampling adds noise, `log_prob` scores. Rollout and replay share
both, so equal inputs give bit-equal log-probabilities. All arithmetic is float32; pass float32 tensors.

The log-probability of a step is the *mean* over latent dimensions, not their sum (Flow-GRPO and its successors: that
is why published clip ranges are 1e-4 to 1e-5). The true log-density, and the true score, are D times that.

A transition is one frozen dataclass that derives from `Transition` and declares which scheduler families take it. It
is chosen by name with `sampling.transition.name`; the names are those of `mmrl.config.sampling.TRANSITIONS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from mmrl.config.sampling import TransitionConfig

Level: TypeAlias = float | Tensor
"""A noise level or a standard deviation: a float, or a tensor that broadcasts against [B, ...]."""

NEARLY_ONE = 0.9985
"""The noise level above which the first sigma of a schedule counts as 1. Solvers that take log(1 - sigma) begin at
1 - 1e-6 (UniPC), or at the last of a thousand training timesteps, 0.999 and more when shifted (DPM++: Sana)."""


@dataclass(frozen=True)
class Transition(ABC):
    """The Gaussian of one denoising step. It is frozen: the object that sampled is the one that scores.

    A subclass is a frozen dataclass. `sampling.transition.noise_level` fills its `noise_field`, and
    `sampling.transition.args` its other fields, unless it defines `from_config` (docs/transitions.md has an example).
    """

    families: ClassVar[frozenset[str]]
    """The scheduler families that take this transition: flow, vp, ve, native (`scheduler_families`)."""
    noise_field: ClassVar[str | None] = "noise_level"
    """The field that scales the noise of a Gaussian in closed form; None: there is no such field. Trained noise levels
    (`sampling.transition.learned`) and the guarded ratio (`algorithm.ratio: guard`) need one."""
    has_final_noise: ClassVar[bool] = False
    """True: the step to sigma' = 0 may add noise (`sampling.window.include_last`)."""

    @classmethod
    def from_config(cls, config: TransitionConfig, scheduler: Any, levels: Sequence[tuple[float, float]]) -> Transition:
        """Return the configured transition on a schedule with these (sigma, sigma') of its steps."""
        noise = {} if cls.noise_field is None else {cls.noise_field: config.noise_level}
        return cls(**noise, **config.args)

    @classmethod
    def config_errors(cls, config: TransitionConfig) -> Iterator[str]:
        """Yield one message for each setting that this transition does not support. No model is loaded yet."""
        takes_fields = getattr(cls.from_config, "__func__", None) is Transition.__dict__["from_config"].__func__
        known = [each.name for each in fields(cls) if each.name != cls.noise_field] if takes_fields else []
        for name in config.args:
            if name not in known:
                takes = f"its fields are {', '.join(known)}" if known else "it has no further fields: leave args out"
                yield f"sampling.transition.args.{name} is not a field of {cls.__name__}: {takes}"

    @abstractmethod
    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        """Return the mean [B, ...] and the standard deviation of x' given x [B, ...]; std 0 means no decision."""

    def log_prob(self, x_next: Tensor, mean: Tensor, std: Level) -> Tensor:
        """Return the Gaussian log-density [B] float32 of `x_next` as a *mean* over latent dimensions."""
        return gaussian_log_prob(x_next, mean, std)


def gaussian_log_prob(
    x_next: Tensor,  # [B, ...]
    mean: Tensor,  # [B, ...]
    std: Level,
) -> Tensor:  # [B] float32
    """Return the log-density of N(mean, std²) at `x_next`, averaged over all dimensions but the first."""
    log_std = std.float().log() if isinstance(std, Tensor) else math.log(std)
    each = -((x_next.float() - mean.float()) ** 2) / (2 * std**2) - log_std - 0.5 * math.log(2 * math.pi)
    return each.flatten(1).mean(1)


@dataclass(frozen=True)
class ODE(Transition):
    """The probability-flow ODE by Euler's method, deterministic: its std is 0 and it has no log-probability.

    As `sampling.transition.name: ode` it stands for the deterministic sampler of any family.
    """

    families: ClassVar[frozenset[str]] = frozenset({"flow", "vp", "ve", "native"})
    noise_field: ClassVar[str | None] = None

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        return x + velocity * (sigma_next - sigma), 0.0


@dataclass(frozen=True)
class FlowSDE(Transition):
    """Flow-GRPO's reverse SDE, arXiv:2505.05470. Keeps the flow's marginals as steps shrink.

    Its noise is infinite at sigma = 1; `first_sigma` replaces sigma there, as in the authors' code. Where a schedule
    begins a little below 1 it does so too: from 0.9998 a step would have ten times the noise, seven times that of x.
    """

    families: ClassVar[frozenset[str]] = frozenset({"flow"})
    noise_level: Level
    first_sigma: float  # sigmas[1] of the *full* schedule; another convention shifts the first step's log-prob

    @classmethod
    def from_config(cls, config: TransitionConfig, scheduler: Any, levels: Sequence[tuple[float, float]]) -> FlowSDE:
        return cls(config.noise_level, levels[min(1, len(levels) - 1)][0])

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        dt = sigma_next - sigma
        s2 = self.noise_level**2 * sigma / (1 - self._away_from_one(sigma))
        mean = x * (1 + s2 * dt / (2 * sigma)) + velocity * (1 + s2 * (1 - sigma) / (2 * sigma)) * dt
        return mean, (-s2 * dt) ** 0.5

    def _away_from_one(self, sigma: Level) -> Level:
        if isinstance(sigma, Tensor):
            return torch.where(sigma > NEARLY_ONE, sigma.clamp(max=self.first_sigma), sigma)
        return min(sigma, self.first_sigma) if sigma > NEARLY_ONE else sigma


@dataclass(frozen=True)
class DanceSDE(Transition):
    """DanceGRPO's reverse SDE with constant noise, arXiv:2505.07818. Keeps the flow's marginals as steps shrink."""

    families: ClassVar[frozenset[str]] = frozenset({"flow"})
    noise_level: Level

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        dt = sigma_next - sigma
        clean = x - velocity * sigma
        minus_score = (x - clean * (1 - sigma)) / sigma**2
        mean = x + velocity * dt + minus_score * (0.5 * self.noise_level**2 * dt)
        return mean, self.noise_level * (-dt) ** 0.5


@dataclass(frozen=True)
class NoisyODE(Transition):
    """Euler's step of the ODE plus noise, as ReinFlow explores (arXiv:2505.22094).

    No term removes the added noise: x' has more of it than sigma', so the noise level should be small. The last step
    may explore too, which leaves its noise in x_0.
    """

    families: ClassVar[frozenset[str]] = frozenset({"flow"})
    has_final_noise: ClassVar[bool] = True
    noise_level: Level

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        dt = sigma_next - sigma
        return x + velocity * dt, self.noise_level * (-dt) ** 0.5


@dataclass(frozen=True)
class CPS(Transition):
    """Coefficients-preserving sampling, arXiv:2509.05952: the noise in x' is exactly sigma'.

    It does *not* keep the flow's marginals as steps shrink: on Gaussian data of standard deviation 0.5 and with a noise
    level of 0.7 it ends at 0.423 after 400 steps. And its log-probability is not a density.
    """

    families: ClassVar[frozenset[str]] = frozenset({"flow"})
    noise_field: ClassVar[str | None] = None  # its score does not depend on the noise level
    noise_level: float  # in [0, 1]

    @classmethod
    def from_config(cls, config: TransitionConfig, scheduler: Any, levels: Sequence[tuple[float, float]]) -> CPS:
        return cls(config.noise_level)

    @classmethod
    def config_errors(cls, config: TransitionConfig) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.noise_level > 1:
            yield f"sampling.transition.noise_level: {config.noise_level} is above 1, the most that cps takes"

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        std = sigma_next * math.sin(self.noise_level * math.pi / 2)
        clean, noise = x - velocity * sigma, x + velocity * (1 - sigma)
        return clean * (1 - sigma_next) + noise * (sigma_next**2 - std**2) ** 0.5, std

    def log_prob(self, x_next: Tensor, mean: Tensor, std: Level) -> Tensor:
        """Return -mean((x' - mean)²) [B] float32, the authors' choice. It is *not* a log-density: std has no effect."""
        return -((x_next.float() - mean.float()) ** 2).flatten(1).mean(1)


@dataclass(frozen=True)
class DDIM(Transition):
    """DDIM with eta noise for variance-preserving models (arXiv:2010.02502; DDPO and DPOK use eta = 1).

    Here sigma is sqrt(1 - alpha_bar), so that x = sqrt(1 - sigma²) x_0 + sigma noise, and `velocity` is the model's
    output in the terms of `prediction`.
    """

    families: ClassVar[frozenset[str]] = frozenset({"vp", "ve"})
    noise_field: ClassVar[str | None] = "eta"
    eta: Level = 0.0  # in [0, 1]: above, a step may have more noise than x' has
    prediction: Literal["epsilon", "v_prediction", "sample"] = "epsilon"
    clip: float | None = None  # bound of the predicted x_0, for models in pixel space

    @classmethod
    def from_config(cls, config: TransitionConfig, scheduler: Any, levels: Sequence[tuple[float, float]]) -> DDIM:
        return cls.of_scheduler(scheduler, config.noise_level)

    @classmethod
    def of_scheduler(cls, scheduler: Any, eta: float) -> DDIM:
        """Return the transition with a scheduler's prediction type and clipping."""
        config = scheduler.config
        clips = type(scheduler).__name__ == "DDIMScheduler" and config.clip_sample  # others have the key and ignore it
        return cls(eta, config.get("prediction_type", "epsilon"), config.clip_sample_range if clips else None)

    @classmethod
    def config_errors(cls, config: TransitionConfig) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.noise_level > 1:
            yield f"sampling.transition.noise_level: {config.noise_level} is above 1, the most eta that ddim takes"
        if config.learned is not None and config.learned.high > 1:
            yield f"sampling.transition.learned.high: {config.learned.high} is above 1, the most eta that ddim takes"

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        signal, signal_next = (1 - sigma**2) ** 0.5, (1 - sigma_next**2) ** 0.5
        if self.prediction == "epsilon":
            noise, clean = velocity, (x - velocity * sigma) / signal
        elif self.prediction == "v_prediction":
            noise, clean = velocity * signal + x * sigma, x * signal - velocity * sigma
        elif self.prediction == "sample":
            noise, clean = (x - velocity * signal) / sigma, velocity
        else:
            raise ValueError(f"prediction is {self.prediction}, expected epsilon, v_prediction or sample")
        if self.clip is not None:
            clean = clean.clamp(-self.clip, self.clip)
        deterministic = isinstance(self.eta, float) and self.eta == 0  # then a step may lead to more noise as well
        std = 0.0 if deterministic else self.eta * (sigma_next / sigma) * (1 - (signal / signal_next) ** 2) ** 0.5
        return clean * signal_next + noise * (sigma_next**2 - std**2) ** 0.5, std


@dataclass(frozen=True)
class Native(Transition):
    """The scheduler's own stochastic step; its family (`scheduler_families`) computes the moments."""

    families: ClassVar[frozenset[str]] = frozenset({"native"})
    noise_field: ClassVar[str | None] = None

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        raise TypeError("only a scheduler's own step knows these moments")
