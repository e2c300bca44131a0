"""The weights with which answers are imitated, from their rewards: advantages that are never negative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat, PositiveInt

from mmrl.components import load_reference
from mmrl.config.section import Section

if TYPE_CHECKING:
    from torch import Tensor


class BestOfConfig(Section):
    """The best answers of each group, which are imitated."""

    name: Literal["best_of"] = "best_of"
    keep: PositiveInt = 1
    """The number of best answers that are kept of each group."""
    min_value: float | None = None
    """Only answers whose total reward reaches this; unset: the best, however bad (RAFT)."""

    def estimate(self, rewards: Tensor, group_index: Tensor) -> Tensor:
        """Return [B]: 1 for rows to imitate, 0 for the others."""
        weights: Tensor = load_reference("mmrl.algorithms:best_of_advantages")(
            rewards, group_index, self.keep, self.min_value
        )
        return weights


class ExponentialConfig(Section):
    """Every answer is imitated, weighed by exp(reward / temperature)."""

    name: Literal["exponential"] = "exponential"
    temperature: PositiveFloat = 1.0
    """The unit of rewards; the lower it is, the more the best answers outweigh the others."""
    normalise: bool = False
    """Divide by the mean weight of a group, so that every prompt counts the same."""

    def estimate(self, rewards: Tensor, group_index: Tensor) -> Tensor:
        """Return [B] the weight of each answer."""
        weights: Tensor = load_reference("mmrl.algorithms:reward_weights")(
            rewards, group_index, self.temperature, self.normalise
        )
        return weights
