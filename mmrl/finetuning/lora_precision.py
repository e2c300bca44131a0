"""LoRA adapters that compute in the precision of their layer's input, with float32 weights.

peft casts the input of a layer to the precision of the adapter's weights. Those are float32, so that small updates are
not lost, and a half-precision model then writes, multiplies and keeps every input of an adapted layer in float32 as
well, with products that use no tensor cores. Here the weights are cast instead, which are some hundred times smaller
than a batch of inputs; their gradients arrive in float32.
"""

from __future__ import annotations

import torch.nn.functional as F
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn


class RoundedLinear(nn.Linear):
    """A linear layer that rounds its weights to the precision of its input; the weights themselves stay as they are."""

    def forward(self, input: Tensor) -> Tensor:
        """Return input @ weight.T in the precision of the input; adapters have no bias."""
        return F.linear(input, self.weight.to(input.dtype))


def compute_in_input_precision(model: nn.Module) -> None:
    """Let adapters of linear layers of `model` compute in the precision of their input, with or without autocast."""
    for layer in _adapted_linear_layers(model):
        layer.cast_input_dtype_enabled = False
        for linear in _adapters(layer):
            linear.__class__ = RoundedLinear  # the same parameters, under the same names


def _adapted_linear_layers(model: nn.Module) -> list[BaseTunerLayer]:
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    return [layer for layer in layers if all(map(_is_plain, _adapters(layer)))]


def _is_plain(adapter: nn.Module) -> bool:
    return isinstance(adapter, nn.Linear) and adapter.bias is None


def _adapters(layer: BaseTunerLayer) -> list[nn.Module]:
    return [*layer.lora_A.values(), *layer.lora_B.values()]
