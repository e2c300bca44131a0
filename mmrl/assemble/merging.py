"""Adapters into the weights that they adapt, so that a model needs no peft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn


@dataclass(frozen=True)
class Merged:
    """What became of the adapters."""

    layers: int
    rounded: float
    """How much of what was learnt the weights' dtype rounds away: the norm of what is lost, as a share of the norm of
    all changes. Near 0 in float32; in bfloat16 small changes of large weights are lost."""


@torch.no_grad()
def merge_adapters(*models: Any) -> Merged:
    """Add every LoRA to its layer, in float32, and put the plain layer in its place.

    The weights keep the dtype that they have.
    """
    layers, lost, learnt = 0, 0.0, 0.0
    for model in models:
        for path, layer in list(model.named_modules()):
            if not isinstance(layer, LoraLayer):
                continue
            plain: Any = layer.get_base_layer()
            for adapter in layer.active_adapters:
                change = layer.get_delta_weight(adapter).float()
                exact = plain.weight.float() + change
                plain.weight.data = exact.to(plain.weight.dtype)
                lost += float((plain.weight.float() - exact).square().sum(dtype=torch.float64))
                learnt += float(change.square().sum(dtype=torch.float64))
            _replace(model, path, plain)
            layers += 1
        for trace in ("peft_config", "_hf_peft_config_loaded"):  # else the model is saved as an adapter
            vars(model).pop(trace, None)
    return Merged(layers, (lost / learnt) ** 0.5 if learnt else 0.0)


def _replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)
