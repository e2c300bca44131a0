"""GRAO: the policy's own answers, and a demonstration that is imitated as far as it is better than they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeFloat

from mmrl.config.algorithms.policy_gradient import GRPOConfig, PolicyGradientConfig
from mmrl.config.algorithms.policy_losses import PolicyLossConfig, ReinforceLoss

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class GRAOConfig(PolicyGradientConfig):
    """GRAO (arXiv:2508.07750): own answers, and a demonstration in each group, imitated as far as it is the better."""

    name: Literal["grao"] = "grao"
    surrogate: PolicyLossConfig = ReinforceLoss()
    imitation: NonNegativeFloat = 0.5
    """The factor on the demonstration's log-likelihood times its advantage, which counts as much as the mean over all
    own answers: the paper's beta."""
    alignment: NonNegativeFloat = 0.6
    """The factor on own answers' log-likelihoods less the demonstration's, times their advantages: the paper's
    lambda."""

    def for_one_call(self) -> GRPOConfig:
        """Return GRPO with its settings, which it is in groups without demonstrations."""
        return GRPOConfig(**{key: getattr(self, key) for key in GRPOConfig.model_fields if key != "name"})

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting without which no demonstration is in a group, or that reads it twice."""
        yield from super().validation_errors(config)
        if config.data.demonstrations is None:
            yield "data.demonstrations: grao imitates them: choose {share: 1.0}, or the algorithm grpo"
        if self.advantage.turns is not None or self.advantage.baseline in ("history", "branch"):
            yield f"algorithm.advantage: grao compares whole answers of a group, which {self.advantage.name} does not"
