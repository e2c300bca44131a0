"""Adapters of half-precision layers, against float64 arithmetic, and what they keep for the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from mmrl.finetuning.lora_precision import compute_in_input_precision
from mmrl.finetuning.trainable import train_in_float32

HALVES = [torch.bfloat16, torch.float16]


def adapted(dtype: torch.dtype) -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 96, dtype=dtype), nn.Linear(96, 32, dtype=dtype)).requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=8, lora_alpha=16, target_modules=["0", "1"]), model)
    train_in_float32(model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # begins at zero, where half of the gradients are
            nn.init.normal_(parameter, std=0.1)
    return model


def results(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = model(inputs)
    out.square().sum().backward()
    return out, torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


def saved_precisions(model: nn.Module, inputs: torch.Tensor) -> set[torch.dtype]:
    """The precisions of what is kept for the backward pass, beside weights."""
    found = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if len(inputs) in tensor.shape:
            found.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(inputs)
    return found


@pytest.mark.parametrize("dtype", HALVES)
def test_values_and_gradients_agree_with_float64(dtype):
    model, inputs = adapted(dtype), torch.randn(50, 64, dtype=dtype)
    exact = copy.deepcopy(model).double()
    compute_in_input_precision(model)
    (out, gradients), (expected, expected_gradients) = results(model, inputs), results(exact, inputs.double())
    assert out.dtype == dtype and gradients.dtype == torch.float32
    allowed = 4 * torch.finfo(dtype).eps
    assert (out.double() - expected).norm() < allowed * expected.norm()
    assert (gradients.double() - expected_gradients).norm() < allowed * expected_gradients.norm()
    assert (out.double() - exact[1].base_layer(exact[0].base_layer(inputs.double()))).norm() > 0.05 * expected.norm()


@pytest.mark.parametrize("dtype", HALVES)
def test_nothing_but_weights_is_kept_in_float32(dtype):
    model, inputs = adapted(dtype), torch.randn(50, 64, dtype=dtype)
    assert torch.float32 in saved_precisions(model, inputs), "the control: peft keeps inputs in float32"
    compute_in_input_precision(model)
    assert saved_precisions(model, inputs) == {dtype}


def test_under_autocast_no_input_is_cast_twice():
    model, inputs = adapted(torch.bfloat16), torch.randn(50, 64, dtype=torch.bfloat16)
    compute_in_input_precision(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert saved_precisions(model, inputs) == {torch.bfloat16}


def test_float32_layers_and_names_stay_as_they_are():
    model, inputs = adapted(torch.float32), torch.randn(50, 64)
    expected, names = model(inputs), list(model.state_dict())
    compute_in_input_precision(model)
    assert model(inputs).equal(expected) and list(model.state_dict()) == names
