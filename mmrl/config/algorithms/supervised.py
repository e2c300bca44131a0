"""Imitation: of demonstrations, or of the policy's own best answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from mmrl.config.algorithms.answer_weights import BestOfConfig
from mmrl.config.algorithms.base import (
    VELOCITY_REGRESSION,
    AnswerSource,
    ExperienceKind,
    MatchingConfig,
    source_errors,
)
from mmrl.config.sampling import SamplingConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class ImitationConfig(MatchingConfig):
    """An algorithm that makes answers likelier."""

    objective: ClassVar[str] = "mmrl.training.objectives.imitation:SupervisedLearning"
    velocity_objective: ClassVar[str | None] = VELOCITY_REGRESSION
    velocity_loss: ClassVar[str] = "mmrl.training.objectives.velocity_losses:ImitationLoss"
    aggregate: Literal["sequence", "token"] = "token"
    """For texts: the mean over all tokens of the update, or first within each answer."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that has no effect on media."""
        yield from super().validation_errors(config)
        if self.aggregate != "token" and isinstance(config.sampling, SamplingConfig):
            yield f"algorithm.aggregate: {self.aggregate} is about tokens, and pictures have none: leave it out"


class SFTConfig(ImitationConfig):
    """Supervised fine-tuning: the samples' demonstrations are made likelier."""

    experience: ClassVar[ExperienceKind] = "demonstrations"
    name: Literal["sft"] = "sft"
    path: str | None = None
    """As a term of `mix`: a data set beside `data.path`, such as general data that are replayed; unset: the run's
    samples that have a demonstration."""


class RejectionSFTConfig(ImitationConfig):
    """Imitation of the policy's own best answers (RAFT, arXiv:2304.06767; RFT, arXiv:2308.01825)."""

    name: Literal["rejection_sft"] = "rejection_sft"
    advantage: BestOfConfig = BestOfConfig()
    samples_from: AnswerSource = "policy"
    """The source of the answers, as of `flow_rwr`; media only."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that has no effect on answers of this kind."""
        yield from super().validation_errors(config)
        yield from source_errors(self.samples_from, config)
