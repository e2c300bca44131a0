"""Distillation on the policy's own answers: each token or denoising step is drawn to a named model, or away from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.named_models import kind_of, missing_model_errors
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
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
    """Distillation on the policy's own answers: each token is drawn to a teacher (KDRL, arXiv:2506.02208), each
    denoising step to the teacher's mean (DiffusionOPD, arXiv:2605.15055)."""

    objective: ClassVar[str] = "mmrl.training.objectives.distillation:Distillation"
    velocity_objective: ClassVar[str | None] = "mmrl.training.objectives.step_distillation:StepDistillation"
    on_decisions: ClassVar[bool] = True
    reads_advantages: ClassVar[bool] = False
    name: Literal["distill"] = "distill"
    teacher: str = "teacher"
    """The name of a model of the run (`models`)."""
    teachers: dict[str, str] = Field(default_factory=dict)
    """The names of other teachers by the source of a sample, for denoising steps; sources that are not named have
    `teacher`."""
    estimator: Estimator = "k2"
    """The estimate of the divergence at a sampled token; that of a denoising step is known. `k2` and `k1` have the
    gradient of KL(policy || teacher): k2 is half the squared log-ratio; k1 takes the log-ratio at sampling time as the
    cost of a token, weighed by the ratio of new to old probability. `k3` has the gradient of KL(teacher || policy), and
    `weighted_k3`, which is k3 times the ratio, that of KL(policy || teacher)."""
    away: bool = False
    """True: the sign of the divergence is reversed, so that the policy leaves the model, such as one that was trained
    to take a shortcut (CDPO, arXiv:2605.01324). It has no bound: a small `weight` in a mix, beside a reward."""
    gate: GateConfig | None = None
    """Unset: every answer is corrected. The mean is over all answers in any case."""
    aggregate: Literal["sequence", "token"] = "token"
    """The mean over all tokens of the update, or first within each answer."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each problem with the teachers."""
        sampling = config.sampling
        if isinstance(sampling, ImageTokenSamplingConfig):
            yield f"algorithm.name: {self.name} has no teachers of image tokens: choose grpo"
        if isinstance(sampling, SamplingConfig) and self.estimator != "k2":
            yield "algorithm.estimator: the divergence of denoising steps is known, not estimated: leave it out"
        if isinstance(sampling, SamplingConfig) and sampling.transition.learned is not None:
            yield "sampling.transition.learned: a teacher has no such noise levels to compare with: leave it out"
        if isinstance(sampling, SamplingConfig) and self.away:
            yield "algorithm.away: denoising steps are drawn to a teacher, and not away from one: leave it out"
        if isinstance(sampling, TokenSamplingConfig) and self.teachers:
            yield "algorithm.teachers: texts have one teacher: set algorithm.teacher, and leave this out"
        named = {"teacher": self.teacher} if not self.teachers or self.teacher in config.models else {}
        for key, name in (named | {f"teachers.{source}": name for source, name in self.teachers.items()}).items():
            yield from missing_model_errors(config, f"algorithm.{key}", name)
            if name in config.models and (kind := kind_of(config, name)) != config.policy.kind:
                yield f"algorithm.{key}: {name} is of kind {kind}, and the policy of kind {config.policy.kind}"
