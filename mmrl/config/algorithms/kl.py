"""The penalty on leaving the reference."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat

from mmrl.config.section import Section


class KLConfig(Section):
    """A penalty on the distance from the reference."""

    number = "coef"

    kind: Literal["mean_distance", "velocity_mse", "k2", "k3", "weighted_k3"] | None = None
    """Denoising steps: `mean_distance` (unset), Flow-GRPO's KL of the two Gaussians, or `velocity_mse`, UniGRPO's,
    without the noise level. Tokens: `k3` (unset), GRPO's estimator; `weighted_k3`, the same times the ratio, or `k2`,
    which both have the gradient of KL(policy || reference). There is no k1: its gradient is zero on average."""
    coef: NonNegativeFloat = 0.0
    """0 switches the penalty, and the reference's forward pass, off."""
