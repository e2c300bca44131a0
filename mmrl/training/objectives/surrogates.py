"""The settings of a policy gradient on a policy with given capabilities, with no default left open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mmrl.algorithms import Aggregation, PolicyLoss
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.errors import ConfigError
from mmrl.policy import Capability

STEP_CLIP, GUARD_CLIP, TOKEN_CLIP = 1e-4, 2e-6, 0.2
"""The default of `clip.low`. The log-prob of a denoising step is a mean over latents, hence the size; a guarded ratio's
is smaller by the step's noise (flow_grpo's GRPO-Guard has 2e-6)."""

Distance = Literal["mean_distance", "velocity_mse", "k2", "k3", "weighted_k3"]
Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor], PolicyLoss]
"""A function of log-probs, old log-probs, advantages and mask, all [B, T]."""


@dataclass(frozen=True)
class SurrogateSettings:
    """The computation of a policy gradient."""

    surrogate: Surrogate
    couples: bool  # whether a term depends on other decisions of its row
    guarded: bool  # whether ratios are normalised by the moments of their step
    distance: Distance | None  # None: no penalty
    how: Aggregation
    constant: float | None


def resolve_settings(
    config: PolicyGradientConfig, capabilities: frozenset[Capability], max_decisions: int | None = None
) -> SurrogateSettings:
    """Fill in what the configuration leaves open. `max_decisions` is the most decisions that a trajectory may have.

    Raises:
        ConfigError: the penalty is not for this kind of policy, or a constant to divide by is missing.
    """
    if errors := list(config.capability_errors(capabilities)):
        raise ConfigError("\n".join(errors))
    constant = config.length or max_decisions
    if config.aggregate != "constant":
        constant = None
    elif constant is None:
        raise ConfigError("algorithm.length: aggregate constant divides by it; set it to the longest answer allowed")
    guarded, denoising = config.ratio == "guard", Capability.MOMENTS in capabilities
    clip = TOKEN_CLIP if not denoising else GUARD_CLIP if guarded else STEP_CLIP
    distance = config.kl.kind or ("mean_distance" if denoising else "k3")
    return SurrogateSettings(
        surrogate=config.surrogate.build(config, clip),
        guarded=guarded,
        couples=config.importance != "token" or config.surrogate.couples_decisions,
        distance=distance if config.kl.coef else None,
        how="token" if config.aggregate == "micro_batch" else config.aggregate,
        constant=constant,
    )
