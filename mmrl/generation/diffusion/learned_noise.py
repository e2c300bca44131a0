"""Noise levels that are trained with the policy: ReinFlow (arXiv:2505.22094), Flow-Noise of pi_RL (arXiv:2510.25889).

The log-probability of a step depends on its spread as well as on its mean, so the policy gradient raises or lowers the
exploration of each step. Rollout and replay evaluate one network with its current parameters.

ReinFlow's network reads the observation and has one output per dimension. `inputs: latents` is this form for latents of
any shape: one network is applied to each dimension, and knows the observation through its latent and its velocity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.config.sampling import TRANSITIONS, TransitionConfig
from mmrl.errors import ConfigError
from mmrl.generation.diffusion.transitions import Level, Transition

FILE = "exploration_noise.safetensors"
NAME = "exploration_noise"
"""The prefix of the network's parameter names."""


class NoiseLevelNetwork(nn.Module):
    """A network from sigma to a noise level between `low` and `high`; untrained, its output is `start`.

    With `inputs` "latents" it is a network from sigma, a latent and its velocity to the level of that dimension.
    """

    def __init__(
        self, low: float, high: float, start: float, hidden: int, inputs: Literal["sigma", "latents"] = "sigma"
    ) -> None:
        """Create an untrained network with `hidden` units.

        Raises:
            ConfigError: `start` does not lie between the bounds.
        """
        super().__init__()
        if not low < start < high:
            raise ConfigError(f"sampling.transition.noise_level: {start} does not lie between learned.low, {low}, and "
                              f"learned.high, {high}")  # fmt: skip
        self._low, self._high = math.log(low), math.log(high)
        self.inputs = inputs
        self.inner, self.outer = nn.Linear(1 if inputs == "sigma" else 3, hidden), nn.Linear(hidden, 1)
        share = (math.log(start) - self._low) / (self._high - self._low)
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, math.atanh(2 * share - 1))

    @classmethod
    def from_config(cls, config: TransitionConfig) -> NoiseLevelNetwork | None:
        """Return the configured network; None if the noise level is not trained."""
        learned = config.learned
        if learned is None:
            return None
        return cls(learned.low, learned.high, config.noise_level, learned.hidden, learned.inputs)

    def forward(self, *inputs: Tensor) -> Tensor:  # [N] each -> [N]
        """Return noise levels; like ReinFlow's they are bounded by a tanh in their logarithm."""
        share = (self.outer(self.inner(torch.stack(inputs, dim=1)).tanh())[:, 0].tanh() + 1) / 2
        return (self._low + (self._high - self._low) * share).exp()

    def save(self, folder: Path) -> None:
        """Write the network next to the other files of a checkpoint."""
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, folder / FILE)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote; raise ConfigError if the file is missing, or the network has another size."""
        path = folder / FILE
        if not path.is_file():
            raise ConfigError(f"{path} is missing: the policy in this folder was trained without "
                              "sampling.transition.learned")  # fmt: skip
        saved = load_file(path)
        if {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in self.state_dict().items()}:
            raise ConfigError(f"{path} was trained with another hidden or inputs of sampling.transition.learned")
        self.load_state_dict(saved)


@dataclass(frozen=True)
class LearnedNoiseTransition(Transition):
    """A transition whose noise level is the output of a network at each step."""

    families: ClassVar[frozenset[str]] = frozenset()  # never chosen by name
    base: Transition
    levels: NoiseLevelNetwork

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        device = self.levels.outer.weight.device
        at = torch.as_tensor(sigma, dtype=torch.float32, device=device)
        inputs = [at]
        if self.levels.inputs == "latents":  # detached: noise is the network's choice, not the denoiser's
            inputs = [at.expand(x.shape), x.detach().to(device), velocity.detach().to(device)]
        level = self.levels(*(each.reshape(-1) for each in inputs)).reshape(inputs[0].shape).to(x.device)
        assert self.base.noise_field is not None
        now = replace(self.base, **{self.base.noise_field: level})
        return now.moments(x, velocity, sigma, sigma_next)

    def log_prob(self, x_next: Tensor, mean: Tensor, std: Level) -> Tensor:
        return self.base.log_prob(x_next, mean, std)


def with_learned_noise(transition: Transition, levels: NoiseLevelNetwork | None) -> Transition:
    """Return the transition with its noise level from `levels`; without a network, unchanged.

    Raises:
        ConfigError: the transition has no `noise_field`.
    """
    if levels is None:
        return transition
    if transition.noise_field is None:
        choices = [name for name in TRANSITIONS.names() if TRANSITIONS.load(name).noise_field is not None]
        raise ConfigError(f"sampling.transition.learned: {type(transition).__name__} has no noise level to train: "
                          f"choose {', '.join(choices)}")  # fmt: skip
    return LearnedNoiseTransition(transition, levels)
