"""Algorithms that regress velocities on noised samples of the policy, and need no log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.answer_weights import ExponentialConfig
from mmrl.config.algorithms.base import (
    VELOCITY_REGRESSION,
    AnswerSource,
    KLConfig,
    MatchingConfig,
    NoiseLevelsConfig,
    source_errors,
)
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class OldPolicyConfig(Section):
    """The rate at which the sampling policy follows: old = decay * old + (1 - decay) * new, after each iteration.

    DiffusionNFT's decay types: 0 is `{rate: 0}`, 1 the default, 2 `{flat: 75, rate: 0.0075, cap: 0.999}`.
    """

    flat: Annotated[int, Field(ge=0)] = 0
    """Optimizer updates at decay 0 (the old policy is the present one)."""
    rate: NonNegativeFloat = 0.001
    """Growth of the decay per optimizer update after that."""
    cap: Annotated[float, Field(ge=0, lt=1)] = 0.5


class ForwardProcessConfig(NoiseLevelsConfig):
    """An algorithm that compares velocities on noised samples of the policy, beside a penalty on leaving it."""

    objective: ClassVar[str] = VELOCITY_REGRESSION
    advantage: AdvantageConfig | ExponentialConfig
    kl: KLConfig = KLConfig(kind="velocity_mse")

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that cannot work without stochastic steps."""
        yield from super().validation_errors(config)
        if self.kl.coef > 0 and self.kl.kind != "velocity_mse":
            yield (
                f"algorithm.kl.kind: {self.kl.kind} compares stochastic steps, which {self.name} does not replay: "
                "choose velocity_mse"
            )
        if isinstance(self.advantage, AdvantageConfig):
            yield from self.advantage.validation_errors(config)
            if self.advantage.baseline in ("branch", "tree"):
                yield (
                    f"algorithm.advantage.name: {self.advantage.name} compares rows that branch at steps, and "
                    f"{self.name} replays none: choose grpo"
                )


class DiffusionNFTConfig(ForwardProcessConfig):
    """DiffusionNFT (arXiv:2509.16117): regress velocities towards good samples and away from bad ones."""

    velocity_loss: ClassVar[str] = "mmrl.training.objectives.velocity_losses:NFTLoss"
    name: Literal["diffusion_nft"] = "diffusion_nft"
    advantage: AdvantageConfig = AdvantageConfig(clip=5.0)
    beta: PositiveFloat = 1.0
    """The distance of the implicit good and bad policies from the old one."""
    negatives: bool = True
    """False: bad samples are not pushed away from, the paper's ablation."""
    old: OldPolicyConfig = OldPolicyConfig()

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that cannot work with the loss."""
        yield from super().validation_errors(config)
        if self.advantage.clip is None:
            yield (
                f"algorithm.advantage.clip: {self.name} maps [-clip, clip] to how good a sample is: set it, to 5.0 say"
            )


class RatioLimitsConfig(Section):
    """The bounds on the ratio of a sample's likelihoods within an update."""

    low: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The ratio's floor is 1 - low."""
    high: PositiveFloat = 1.0
    """Its ceiling is 1 + high."""


class AWMConfig(ForwardProcessConfig, MatchingConfig):
    """AWM: the flow-matching error stands for the log-probability in a clipped policy gradient (arXiv:2509.25050)."""

    velocity_loss: ClassVar[str] = "mmrl.training.objectives.velocity_losses:AWMLoss"
    name: Literal["awm"] = "awm"
    advantage: AdvantageConfig = AdvantageConfig(std="batch", clip=5.0)
    """Divided by `clip`, so that it lies in [-1, 1] beside the penalties."""
    num_noise_levels: PositiveInt = 6
    clip: RatioLimitsConfig = RatioLimitsConfig()
    old: OldPolicyConfig = OldPolicyConfig(rate=0.0)
    """Ratios are relative to the sampling policy. At rate 0 that is the trained one at the start of an iteration."""
    old_kl: NonNegativeFloat = 0.0
    """The weight of the squared distance from the sampling policy's velocity; the paper's code has 1 to a slow one."""


class FlowRWRConfig(ForwardProcessConfig, MatchingConfig):
    """Flow-RWR: imitation of answers, each weighed by the exponential of its reward (arXiv:2501.13918)."""

    velocity_loss: ClassVar[str] = "mmrl.training.objectives.velocity_losses:ImitationLoss"
    name: Literal["flow_rwr"] = "flow_rwr"
    advantage: ExponentialConfig = ExponentialConfig()
    samples_from: AnswerSource = "policy"
    """The source of the imitated answers: the weights that are trained, or those that training started from, whose
    answers are distributed as a fixed data set's; or `data`, the data set itself (the paper's setting)."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that cannot work with the source of answers."""
        yield from super().validation_errors(config)
        yield from source_errors(self.samples_from, config)
