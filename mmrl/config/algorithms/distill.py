"""Distillation on the policy's own answers: each token is drawn towards a named teacher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

Estimator = Literal["k1", "k2", "k3", "weighted_k3"]


class GateConfig(Section):
    """The answers that a teacher corrects, by their total reward."""

    at_least: float | None = None
    """Only answers whose total reward is at least this (KEPO: dense guidance of good answers alone)."""
    below: float | None = None
    """Only answers whose total reward is below this (KDRL: right answers are left as they are)."""

    @model_validator(mode="after")
    def _lets_something_through(self) -> GateConfig:
        if self.at_least is None and self.below is None:
            raise ValueError("at_least, below, or both: a gate without a bound lets every answer through")
        if self.at_least is not None and self.below is not None and self.at_least >= self.below:
            raise ValueError(f"at_least under below: no total is {self.at_least:g} or more and under {self.below:g}")
        return self


class DistillConfig(AlgorithmConfig):
    """Distillation on the policy's own answers: each token is drawn to a teacher (KDRL, arXiv:2506.02208)."""

    objective: ClassVar[str] = "mmrl.training.objectives.distillation:Distillation"
    on_decisions: ClassVar[bool] = True
    name: Literal["distill"] = "distill"
    teacher: str = "teacher"
    """The name of a model of the run (`models`)."""
    estimator: Estimator = "k2"
    """The estimate of the divergence at a sampled token. `k2` and `k1` have the gradient of KL(policy || teacher): k2
    is half the squared log-ratio; k1 takes the log-ratio at sampling time as the cost of a token, weighed by the ratio
    of new to old probability. `k3` has the gradient of KL(teacher || policy), and `weighted_k3`, which is k3 times the
    ratio, that of KL(policy || teacher)."""
    gate: GateConfig | None = None
    """Unset: every answer is corrected. The mean is over all answers in any case."""
    aggregate: Literal["sequence", "token"] = "token"
    """The mean over all tokens of the update, or first within each answer."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each problem with the teacher."""
        if not isinstance(config.sampling, TokenSamplingConfig):
            yield f"algorithm.name: {self.name} compares tokens, and this policy writes none: choose grpo"
        if self.teacher not in config.models:
            known = ", ".join(config.models) or "it is empty"
            yield f"algorithm.teacher: there is no model {self.teacher} in models ({known}): name one there"
