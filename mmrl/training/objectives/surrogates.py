"""Which loss a configuration means, on a policy with given powers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mmrl.algorithms import (
    Aggregation,
    PolicyLoss,
    cispo_policy_loss,
    clipped_policy_loss,
    sapo_policy_loss,
    topr_policy_loss,
    vespo_policy_loss,
)
from mmrl.config.algorithm import PolicyGradientConfig
from mmrl.errors import ConfigError
from mmrl.policy import Capability

STEP_CLIP, GUARD_CLIP, TOKEN_CLIP = 1e-4, 2e-6, 0.2
"""What `clip.low` is where it is not set. The log-prob of a denoising step is a mean over latents, hence the size; a
guarded ratio's is smaller by the step's noise (flow_grpo's GRPO-Guard has 2e-6)."""

Distance = Literal["mean_distance", "velocity_mse", "k2", "k3", "weighted_k3"]
Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor], PolicyLoss]
"""Of log-probs, old log-probs, advantages and mask, all [B, T]."""


@dataclass(frozen=True)
class SurrogateSettings:
    """What a policy gradient computes, with nothing left unset."""

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
    constant = config.length or max_decisions
    if config.aggregate != "constant":
        constant = None
    elif constant is None:
        raise ConfigError("algorithm.length: aggregate constant divides by it; set it to the longest answer allowed")
    guarded = config.ratio == "guard"
    if guarded and Capability.MOMENTS not in capabilities:
        raise ConfigError("algorithm.ratio: guard normalises by the noise of denoising steps, and tokens have none")
    steps = GUARD_CLIP if guarded else STEP_CLIP
    return SurrogateSettings(
        surrogate=_surrogate(config, steps if Capability.MOMENTS in capabilities else TOKEN_CLIP),
        guarded=guarded,
        couples=config.importance != "token",
        distance=_distance(config, capabilities) if config.kl.coef else None,
        how="token" if config.aggregate == "micro_batch" else config.aggregate,
        constant=constant,
    )


def _surrogate(config: PolicyGradientConfig, clip: float) -> Surrogate:
    low, importance = config.clip.low, config.importance
    high = config.clip.high or low or clip

    def loss(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
        match config.surrogate:
            case "clip":
                return clipped_policy_loss(
                    log_probs,
                    old,
                    advantages,
                    mask,
                    clip_low=low or clip,
                    clip_high=high,
                    dual=config.clip.dual,
                    importance=importance,
                )
            case "cispo":
                return cispo_policy_loss(log_probs, old, advantages, mask, low, high, importance=importance)
            case "sapo":
                gate = config.temperature
                return sapo_policy_loss(
                    log_probs, old, advantages, mask, gate.positive, gate.negative, importance=importance
                )
            case "topr":
                return topr_policy_loss(log_probs, old, advantages, mask, importance=importance)
            case "vespo":
                gamma = config.gamma
                return vespo_policy_loss(
                    log_probs,
                    old,
                    advantages,
                    mask,
                    positive=(gamma.k_positive, gamma.lambda_positive),
                    negative=(gamma.k_negative, gamma.lambda_negative),
                    importance=importance,
                )

    return loss


def _distance(config: PolicyGradientConfig, capabilities: frozenset[Capability]) -> Distance:
    steps = Capability.MOMENTS in capabilities
    kind = config.kl.kind or ("mean_distance" if steps else "k3")
    if steps != (kind in ("mean_distance", "velocity_mse")):
        due = "mean_distance or velocity_mse" if steps else "k3, weighted_k3 or k2"
        what = "denoising steps" if steps else "tokens"
        raise ConfigError(f"algorithm.kl.kind: {kind} is not for {what}: choose {due}, or leave it out")
    return kind
