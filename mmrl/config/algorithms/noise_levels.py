"""Where velocities are compared: noise levels, and how much each counts."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from mmrl.config.section import Section


class NoiseLevelsConfig(Section):
    """Samples are noised again to random levels, and velocities are compared there."""

    num_noise_levels: PositiveInt = 3
    """Random noise levels per trajectory and update, for policies that draw."""


class MatchingConfig(NoiseLevelsConfig):
    """The flow-matching error of a sample, the mean over its latent dimensions, over random noise levels."""

    weighting: Literal["uniform", "sigma", "sigma_squared", "epsilon", "huber", "ghuber"] = "uniform"
    """How much the error at a level counts, for policies that draw. `epsilon`: as for a model that predicts noise;
    `sigma_squared`: as for one that predicts the picture; `huber` and `ghuber`: sigma times the error's root, or its
    fourth root times 4."""
