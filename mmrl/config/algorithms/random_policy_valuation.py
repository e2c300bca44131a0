"""ROVER: values of the uniformly random policy, which the policy's own log-probabilities stand for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import AlgorithmConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class ROVERConfig(AlgorithmConfig):
    """ROVER (arXiv:2509.24981): log-ratios learn the values of a random policy, from rewards and the next token's."""

    on_decisions: ClassVar[bool] = True
    objective: ClassVar[str] = "mmrl.training.objectives.random_policy_valuation:RandomPolicyValuation"
    name: Literal["rover"] = "rover"
    advantage: AdvantageConfig = AdvantageConfig(name="dr_grpo")
    temperature: PositiveFloat = 1.0
    """The value of a token is this times its log-ratio to the policy that sampled, the paper's rho: the larger, the
    less a reward moves a probability."""
    successors: NonNegativeFloat = 1.0
    """The factor on the mean value of all tokens that could come next; 0: rewards alone are the target."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting by which answers would not be those of the policy before the update."""
        yield from super().validation_errors(config)
        yield from self.advantage.validation_errors(config)
        if config.data.replay is not None:
            yield "data.replay: rover reads the policy that sampled an answer: leave it out, or choose grpo"
        if config.data.demonstrations is not None:
            yield "data.demonstrations: rover values the policy's own answers: leave them out, or choose grpo"
        if config.run.overlap.is_on:
            yield "run.overlap: rover compares an answer with the policy before the update: leave it out"
