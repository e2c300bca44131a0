"""Noise levels that are trained with the policy: ReinFlow (arXiv:2505.22094), Flow-Noise of pi_RL (arXiv:2510.25889).

The log-probability of a step depends on its spread as well as on its mean, so the policy gradient raises or lowers the
exploration of each step. Rollout and replay evaluate one network with its current parameters.

ReinFlow's network also reads the observation and has one output per dimension; here the noise level is a function of
sigma only, and scales the transition's noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

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
    """A network from sigma to a noise level between `low` and `high`; untrained, its output is `start`."""

    def __init__(self, low: float, high: float, start: float, hidden: int) -> None:
        """Create an untrained network with `hidden` units.

        Raises:
            ConfigError: `start` does not lie between the bounds.
        """
        super().__init__()
        if not low < start < high:
            raise ConfigError(f"sampling.transition.noise_level: {start} does not lie between learned.low, {low}, and "
                              f"learned.high, {high}")  # fmt: skip
        self._low, self._high = math.log(low), math.log(high)
        self.inner, self.outer = nn.Linear(1, hidden), nn.Linear(hidden, 1)
        share = (math.log(start) - self._low) / (self._high - self._low)
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, math.atanh(2 * share - 1))

    @classmethod
    def from_config(cls, config: TransitionConfig) -> NoiseLevelNetwork | None:
        """Return the configured network; None if the noise level is not trained."""
        learned = config.learned
        return None if learned is None else cls(learned.low, learned.high, config.noise_level, learned.hidden)

    def forward(self, sigma: Tensor) -> Tensor:  # [N] -> [N]
        """Return noise levels; like ReinFlow's they are bounded by a tanh in their logarithm."""
        share = (self.outer(self.inner(sigma[:, None]).tanh())[:, 0].tanh() + 1) / 2
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
            raise ConfigError(f"{path} was trained with another sampling.transition.learned.hidden")
        self.load_state_dict(saved)


@dataclass(frozen=True)
class LearnedNoiseTransition(Transition):
    """A transition whose noise level is the output of a network at each step."""

    families: ClassVar[frozenset[str]] = frozenset()  # never chosen by name
    base: Transition
    levels: NoiseLevelNetwork

    def moments(self, x: Tensor, velocity: Tensor, sigma: Level, sigma_next: Level) -> tuple[Tensor, Level]:
        at = torch.as_tensor(sigma, dtype=torch.float32, device=self.levels.outer.weight.device)
        level = self.levels(at.reshape(-1)).reshape(at.shape).to(x.device)
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
