"""Advantages from the order of a group's answers on which several rewards agree (ThinkRL-Edit)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from mmrl.components import load_reference
from mmrl.config.algorithms.advantage import AdvantageConfig

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.config.train import TrainConfig


class ChainAdvantage(AdvantageConfig):
    """Several rewards: ranks on the longest chain of answers that all of them order alike (arXiv:2601.03467).

    Of a reward's weight the sign counts alone: below 0, lower values are better.
    """

    name: Literal["chains"] = "chains"
    uses_total: ClassVar[bool] = False
    several_rewards: ClassVar[str] = "orders answers by several rewards"

    def estimate_several(self, rewards: Tensor, weights: list[float], group_index: Tensor) -> Tensor:
        used = [column for column, weight in enumerate(weights) if weight]
        signs = rewards.new_tensor([1.0 if weights[column] > 0 else -1.0 for column in used])
        estimate = load_reference("mmrl.algorithms.preference_chains:chain_advantages")
        advantages: Tensor = estimate(rewards[:, used] * signs, group_index)
        return advantages

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        yield from super().validation_errors(config)
        if config.data.group_sampling.name == "dynamic":
            yield (
                "data.group_sampling: dynamic drops groups whose totals are equal, but chains learns from those whose "
                "rewards differ one by one: leave it out, or choose grpo"
            )
