"""The key `models`: models beside the policy, by name, which score and teach and are not trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

POLICY = "policy"
"""The name of the policy itself, as it is now, among the models that rewards may ask."""


class NamedModelConfig(Section):
    """A model beside the policy: another one, or a snapshot of the policy."""

    model: str | None = None
    """A folder, a Hugging Face id, a name as in `policy.model`, or the folder of a run, whose last checkpoint it is
    (`RUN@best` is its best one). It has the policy's tokenizer and is of its family, and may be larger."""
    revision: str | None = None
    of: Literal["policy"] | None = None
    """Set: a snapshot of the policy. Without `every` and `ema`, it is the policy as training began."""
    every: PositiveInt | None = None
    """The snapshot is renewed after each this many iterations; unset: after each one, with `ema`."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The snapshot is a moving average: ema times itself plus 1 - ema times the policy. Unset: the policy itself."""
    train: Literal["none"] = "none"
    """`none`: the model is not trained. One model of a run is trained, the policy."""

    @field_validator("train", mode="before")
    @classmethod
    def _no_other_model_is_trained(cls, value: Any) -> Any:
        if value != "none":
            raise ValueError("none: one model of a run is trained, the policy; train the other in another run")
        return value

    @model_validator(mode="after")
    def _is_a_model_or_a_snapshot(self) -> NamedModelConfig:
        if (self.model is None) == (self.of is None):
            raise ValueError("either model, the name of another model, or of: policy, for a snapshot")
        if self.of is None and (self.every is not None or self.ema is not None):
            raise ValueError("every and ema of a snapshot (of: policy) alone: another model never changes")
        if self.of is not None and self.revision is not None:
            raise ValueError("no revision of a snapshot: it is the policy's own")
        return self

    @property
    def changes(self) -> bool:
        """True if the model is a snapshot that follows the policy."""
        return self.every is not None or self.ema is not None


def _logit_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of `evaluation.logits` that cannot work with the rest of `config`."""
    weights = config.evaluation.logits
    if not weights:
        return
    if config.policy.kind != "vlm":
        yield f"evaluation.logits: policies of kind {config.policy.kind} add no logits of several models: leave it out"
    if unknown := [name for name in weights if name != POLICY and name not in config.models]:
        known = ", ".join([POLICY, *config.models])
        yield f"evaluation.logits.{unknown[0]}: there is no such model in models; the names are {known}"
    if not any(weights.values()):
        yield "evaluation.logits: no model has a weight other than 0, so there is nothing to sample from"
    if config.run.servers is not None:
        yield "evaluation.logits: servers of run.servers return no logits: leave one of the two out"


def _head_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of the policy's heads that cannot work with the rest of `config`."""
    heads: tuple[str, ...] = getattr(config.policy, "heads", ())
    if unknown := [name for name in config.evaluation.heads if name not in heads]:
        yield f"evaluation.heads.{unknown[0]}: policy.heads has {', '.join(heads) or 'no heads'}"
    if not heads:
        if getattr(config.policy, "heads_lr_scale", 1.0) != 1.0:
            yield "policy.heads_lr_scale: policy.heads names no heads: leave it out"
        return
    if len(set(heads)) != len(heads) or len(heads) < 2:
        yield f"policy.heads: expected the different names of two or more objectives, got {', '.join(heads)}"
    if config.run.servers is not None:
        yield "policy.heads: servers of run.servers have one output layer: leave one of the two out"
    if config.run.place not in ("auto", "replicas"):
        yield f"policy.heads: run.place {config.run.place} divides the model, and heads are whole: choose replicas"


def model_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of `models` that cannot work with the rest of `config`."""
    yield from _logit_errors(config)
    yield from _head_errors(config)
    if not config.models:
        return
    if POLICY in config.models:
        yield f"models.{POLICY}: this is the name of the policy itself: choose another name"
    if config.policy.kind != "vlm":
        yield f"models: policies of kind {config.policy.kind} score no texts, as those of kind vlm do: leave it out"
    if config.run.overlap.is_on:
        yield "models: snapshots are taken between iterations, which run.overlap does not separate: take lag 0"
