"""Advantages for labels that name one of several right actions: negative ones scaled by the success of their group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from mmrl.components import load_reference
from mmrl.config.algorithms.advantage import AdvantageConfig

if TYPE_CHECKING:
    from torch import Tensor


class NegativeScalingAdvantage(AdvantageConfig):
    """GRPO's advantage, where failures count less the rarer success is in their group (GUI-Libra, arXiv:2602.22190).

    For rewards in [0, 1]. A negative advantage is multiplied by base + slope * the mean reward of its group, at most 1.
    """

    name: Literal["scaled_negatives"] = "scaled_negatives"
    function: ClassVar[str | None] = "mmrl.algorithms:grpo_advantages"
    base: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The factor where nothing of a group has a reward; 1: GRPO's own advantage."""
    slope: NonNegativeFloat = 1.5
    """The growth of the factor with the mean reward of the group."""

    def arguments(self) -> Mapping[str, Any]:
        return {"std": self.std, "ddof": self.ddof}

    def estimate(self, rewards: Tensor, group_index: Tensor) -> Tensor:
        scaled = load_reference("mmrl.algorithms.negative_scaling:scaled_negatives")
        plain = super().estimate(rewards, group_index)
        result: Tensor = scaled(plain, rewards, group_index, base=self.base, slope=self.slope)
        return result
