"""Cross-field validation of blends: the sums of logits of `evaluation.logits`, and the heads of `policy.heads`."""

from __future__ import annotations

from collections.abc import Iterator

from mmrl.config.named_models import POLICY, kind_of
from mmrl.config.train import TrainConfig


def blend_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of blended logits or heads that cannot work with the rest of `config`."""
    yield from _logit_errors(config)
    yield from _head_errors(config)


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
    for name in weights:
        if name in config.models and (kind := kind_of(config, name)) != config.policy.kind:
            yield f"evaluation.logits.{name}: a model of kind {kind} has no logits of texts: leave it out"
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
