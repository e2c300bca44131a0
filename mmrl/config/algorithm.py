"""The objective: what one update minimises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, Tag

from mmrl.config.section import Section


class AdvantageConfig(Section):
    """How rewards become advantages."""

    name: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "gdpo"] = "grpo"
    std: Literal["group", "batch"] = "group"
    """grpo: the spread that divides: of each group, or of the whole batch (Flow-GRPO)."""
    ddof: Literal[0, 1] = 0
    """0: population spread (flow_grpo); 1: sample spread (DanceGRPO, verl-omni)."""
    clip: PositiveFloat | None = None
    """Advantages are limited to [-clip, clip]."""


class ClipConfig(Section):
    """How far one update may move the probability of a decision."""

    low: PositiveFloat = 1e-4
    """The ratio's floor is 1 - low. A denoising step's log-prob is a *mean* over latents, hence the size."""
    high: PositiveFloat | None = None
    """The ratio's ceiling is 1 + high; unset, as `low`. DAPO's clip-higher sets it apart."""


class KLConfig(Section):
    """A penalty on the distance from the reference."""

    kind: Literal["mean_distance", "velocity_mse"] = "mean_distance"
    """`mean_distance`: Flow-GRPO's KL of the two Gaussians; `velocity_mse`: UniGRPO's, without the noise level."""
    coef: NonNegativeFloat = 0.0
    """0 switches the penalty, and the reference's forward pass, off."""


class GRPOConfig(Section):
    """Clipped policy gradient on group-relative advantages (Flow-GRPO, DanceGRPO, MixGRPO)."""

    name: Literal["grpo"] = "grpo"
    advantage: AdvantageConfig = AdvantageConfig()
    clip: ClipConfig = ClipConfig()
    kl: KLConfig = KLConfig()
    aggregate: Literal["token", "sequence"] = "sequence"
    """Mean over all decisions, or first within each trajectory."""


class OldPolicyConfig(Section):
    """How fast the sampling policy follows the trained one: old = decay * old + (1 - decay) * new."""

    flat: Annotated[int, Field(ge=0)] = 0
    """Optimizer updates at decay 0 (the old policy is the present one)."""
    rate: NonNegativeFloat = 0.001
    """Growth of the decay per optimizer update after that."""
    cap: Annotated[float, Field(ge=0, lt=1)] = 0.5


class DiffusionNFTConfig(Section):
    """DiffusionNFT (arXiv:2509.16117): regress velocities towards good samples and away from bad ones."""

    name: Literal["diffusion_nft"] = "diffusion_nft"
    advantage: AdvantageConfig = AdvantageConfig(clip=5.0)
    beta: PositiveFloat = 1.0
    """How far the implicit good and bad policies lie from the old one."""
    times: PositiveInt = 3
    """Random noise levels per trajectory and update."""
    old: OldPolicyConfig = OldPolicyConfig()
    kl: KLConfig = KLConfig(kind="velocity_mse")


def _algorithm_name(given: Any) -> str:
    """A map without a name changes the default algorithm, as leaving out the whole section selects it."""
    name = given.get("name", "grpo") if isinstance(given, Mapping) else getattr(given, "name", "grpo")
    return str(name)


AlgorithmConfig = Annotated[
    Annotated[GRPOConfig, Tag("grpo")] | Annotated[DiffusionNFTConfig, Tag("diffusion_nft")],
    Discriminator(_algorithm_name),
]
