"""What of a vision-language model is trained: adapters, or whole parts of it. And with it the reference."""

from __future__ import annotations

from typing import Any

from torch import nn

from mmrl.config.policy import LoraConfig, VLMConfig
from mmrl.errors import ConfigError
from mmrl.finetuning.transformers_modules import Adapters, WholeParameters, layers_named
from mmrl.understanding.vlm import Part, part_of


def trained_parts(config: VLMConfig) -> set[Part]:
    """The language model, and what else the configuration lets learn."""
    parts: set[Part] = {"language"}
    if config.vision.train:
        parts.add("vision")
    if config.connector.train:
        parts.add("connector")
    return parts


class LoraTrainable(Adapters):
    """Low-rank adapters on the linear layers of parts; the model itself is frozen, and is the reference."""

    def __init__(self, model: nn.Module, config: LoraConfig, parts: set[Part]) -> None:
        super().__init__(model, config, _targets(model, config, parts))


class FullTrainable(WholeParameters):
    """All parameters of the parts that are trained; the reference is a frozen copy of them."""

    def __init__(self, model: Any, parts: set[Part]) -> None:
        if absent := sorted(parts - {part_of(name) for name, _ in model.named_parameters()}):
            raise ConfigError(f"policy.{absent[0]}.train: {type(model).__name__} has no {absent[0]} apart")
        super().__init__(model, lambda name: part_of(name) in parts)


def _targets(model: nn.Module, config: LoraConfig, parts: set[Part]) -> list[str]:
    """The full names of the linear layers to adapt: those of the trained parts, but never the head."""
    linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    inside = [path for path in linear if part_of(path) in parts and not path.endswith("lm_head")]
    if bare := sorted(parts - {part_of(path) for path in inside}):
        raise ConfigError(
            f"policy.{bare[0]}.train: the {bare[0]} of {type(model).__name__} has no linear layer for an adapter; "
            "policy.train=full can train it"
        )
    return layers_named(inside, config.targets)
