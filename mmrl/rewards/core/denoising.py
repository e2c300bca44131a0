"""Velocities and clean latents that generators of a run predict from noised pictures, for rewards.

generator = denoiser_of(context, "start")
(levels,) = generator.denoise([item.sample], [item.image], places=(0.25, 0.5, 0.75), seed=context.seed)
error = [each.error for each in levels]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mmrl.data.sample import Sample

if TYPE_CHECKING:
    from mmrl.rewards.core.reward_io import RewardContext


@dataclass(frozen=True)
class Denoised:
    """The prediction of a generator at one noise level, from x_t = (1 - sigma) x_0 + sigma noise."""

    sigma: float
    clean: NDArray[np.float32]
    """The latents x_0 of the picture, [...] in the packing of the generator's sampling loop."""
    noise: NDArray[np.float32]
    velocity: NDArray[np.float32]
    """The predicted velocity, an estimate of noise - x_0."""

    @property
    def predicted(self) -> NDArray[np.float32]:
        """The predicted x_0: x_t - sigma times the velocity."""
        return (1 - self.sigma) * self.clean + self.sigma * (self.noise - self.velocity)

    @property
    def error(self) -> float:
        """The mean squared error of the velocity, over latent dimensions."""
        return float(np.mean((self.velocity - (self.noise - self.clean)) ** 2, dtype=np.float64))


@runtime_checkable
class DenoisingModel(Protocol):
    """A model of the run that predicts the velocities of noised pictures."""

    def denoise(
        self, samples: Sequence[Sample], media: Sequence[Any], places: Sequence[float], seed: int
    ) -> list[list[Denoised]]:
        """Return, for each picture (or list of frames) of a sample, the predictions at each noise level.

        `places` are quantiles in (0, 1] of the levels that the model was trained at. Predictions are without guidance.
        Equal seeds give equal noise, and all pictures have the same.
        """


def denoiser_of(context: RewardContext, name: str) -> DenoisingModel:
    """Return a model of the run that predicts velocities.

    Raises:
        ScoringFailed: answers are scored outside of a run, or it has no such model.
    """
    found = context.models.get(name)
    if not isinstance(found, DenoisingModel):
        raise context.no_model(f"generator {name}")
    return found
