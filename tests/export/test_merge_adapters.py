"""Adapters merge into the weights, and what the weights' dtype cannot hold is counted."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from mmrl.export.merged_model import merge_adapters


def adapted(weight: float, change: float, dtype: torch.dtype) -> nn.Sequential:
    """Two linear layers of one weight each, the first with a rank-one adapter that adds `change` everywhere."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(dtype)
    with torch.no_grad():
        model[0].weight.fill_(weight)
    inject_adapter_in_model(LoraConfig(r=1, lora_alpha=2, target_modules=["0"]), model, "default")
    layer = model[0]
    for parameter in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
        parameter.data = torch.full_like(parameter, (change / 2) ** 0.5, dtype=torch.float32)
    return model


def test_merged_weights_replace_the_adapter():
    model = adapted(1.0, 0.5, torch.float32)
    inputs = torch.randn(3, 4)
    expected = model(inputs)
    merged = merge_adapters(model)
    assert merged.layers == 1 and merged.rounded < 1e-6
    assert (
        type(model[0]) is nn.Linear
        and model.state_dict().keys() == nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).state_dict().keys()
    )
    torch.testing.assert_close(model(inputs), expected)
    torch.testing.assert_close(model[0].weight, torch.full((4, 4), 1.5))


@pytest.mark.parametrize(
    ("change", "lost"),
    [(0.5, 0.0), (2.0**-9, 1.0), (3 * 2.0**-9, 1 / 3)],  # next to 1, bfloat16 has steps of 2**-7 above: 2**-9 is lost
)
def test_merge_reports_changes_lost_to_bfloat16(change, lost):
    model = adapted(1.0, change, torch.bfloat16)
    merged = merge_adapters(model)
    assert model[0].weight.dtype == torch.bfloat16
    assert merged.rounded == pytest.approx(lost, abs=1e-3)
