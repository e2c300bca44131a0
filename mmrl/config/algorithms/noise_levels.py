"""The noise levels at which velocities are compared, and the weight of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PositiveInt

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.sampling import SamplingConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class NoiseLevelsConfig(AlgorithmConfig):
    """An algorithm that noises samples to random levels and compares velocities there."""

    velocity_loss: ClassVar[str | type[Any]]
    """The loss at one noise level, a `mmrl.training.objectives.velocity_losses.VelocityLoss`: the class, or its
    reference. Its one argument is the section."""
    num_noise_levels: PositiveInt = 3
    """Random noise levels per trajectory and update, for policies that generate media."""


class MatchingConfig(NoiseLevelsConfig):
    """An algorithm on the flow-matching error of a sample, the mean over its latent dimensions and noise levels."""

    weighting: Literal["uniform", "sigma", "sigma_squared", "epsilon", "huber", "ghuber"] = "uniform"
    """The weight of the error at a level, for policies that generate media. `epsilon`: as for a model that predicts
    noise; `sigma_squared`: as for one that predicts the picture; `huber` and `ghuber`: sigma times the error's root, or
    its fourth root times 4."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key about noise levels that is set where the policy writes text."""
        yield from super().validation_errors(config)
        for key in ("num_noise_levels", "weighting"):
            changed = getattr(self, key) != type(self).model_fields[key].default
            if changed and not isinstance(config.sampling, SamplingConfig):
                yield (
                    f"algorithm.{key}: noise levels are for policies that generate media, and texts have none: leave "
                    "it out"
                )
