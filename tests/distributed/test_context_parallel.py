"""Limits of diffusers' context parallelism on a CPU, for which there is no key of a recipe.

If a test of this file fails, diffusers has changed, and docs/scaling.md must be looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mmrl.distributed import processes
from tests.distributed.calls_in_group import call_in_group

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.accelerator.is_available(), reason="the door was tried without an accelerator"),
]
INPUTS = {"hidden_states": (2, 4, 4, 8, 8), "encoder_hidden_states": (2, 6, 16)}


def denoiser() -> Any:
    """Return a Wan transformer of 2 heads, always the same."""
    import diffusers

    torch.manual_seed(0)
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
        text_dim=16, freq_dim=32, ffn_dim=32, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )  # fmt: skip


def backward(model: Any) -> torch.Tensor:
    """Add gradients of a fixed sum of the outputs, and return the outputs."""
    generator = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in INPUTS.items()}
    weights = torch.randn(INPUTS["hidden_states"], generator=generator)
    found: torch.Tensor = model(**inputs, timestep=torch.tensor([100, 500]), return_dict=False)[0]
    (found * weights).sum().backward()
    return found.detach()


def divided(degrees: dict[str, int]) -> Any:
    """Return the model divided by what `enable_parallelism` calls, with the device that it cannot find on a CPU."""
    from diffusers import ContextParallelConfig
    from diffusers.hooks.context_parallel import apply_context_parallel
    from diffusers.models._modeling_parallel import ParallelConfig

    model, config = denoiser(), ContextParallelConfig(**degrees)
    whole = ParallelConfig(context_parallel_config=config)
    mesh = dist.device_mesh.init_device_mesh("cpu", config.mesh_shape, mesh_dim_names=config.mesh_dim_names)
    whole.setup(processes.rank(), processes.size(), torch.device("cpu"), mesh=mesh)
    model._parallel_config = whole
    for module in model.modules():
        if hasattr(getattr(module, "processor", None), "_parallel_config"):
            module.processor._parallel_config = whole
    apply_context_parallel(model, config, model._cp_plan)
    return model


def try_both(folder: Path) -> dict[str, Any]:
    """Divide a model over two processes by the public function, then by its private parts."""
    from diffusers import ContextParallelConfig

    found: dict[str, Any] = {}
    try:
        denoiser().enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
    except ZeroDivisionError as err:
        found["public"] = str(err)
    alone = denoiser()
    expected = backward(alone)
    try:
        backward(divided({"ring_degree": 2}))
    except ValueError as err:
        found["ring"] = str(err)
    model = divided({"ulysses_degree": 2})
    found["outputs"] = (backward(model) - expected).abs().max().item()
    own, gradients = [], []
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        found_gradient = torch.zeros_like(one) if one.grad is None else one.grad
        own.append((found_gradient - other.grad).abs().max().item())
        (summed,) = processes.sums([found_gradient])
        gradients.append((summed - other.grad).abs().max().item())
    found["largest"] = max(each.grad.abs().max().item() for each in alone.parameters())
    return found | {"gradients": max(gradients), "own_gradients": max(own)}


def test_the_public_function_needs_an_accelerator_and_its_parts_do_not(fork_server, tmp_path):
    for found in call_in_group(fork_server, tmp_path / "group", 2, "tests.distributed.test_context_parallel:try_both"):
        assert "modulo by zero" in found["public"]  # the number of accelerators
        assert "return_lse" in found["ring"]  # the attention of torch on a CPU has no sums of exponentials
        assert found["outputs"] == 0.0
        assert found["gradients"] <= 1e-6 * found["largest"]  # the sum over processes is that of one process
        assert found["own_gradients"] > 1e-2 * found["largest"]  # and each has a part of it


def test_the_models_that_have_a_plan():
    import diffusers

    plans = {
        name: getattr(diffusers, name)._cp_plan is not None
        for name in (
            "WanTransformer3DModel", "LTXVideoTransformer3DModel", "FluxTransformer2DModel",
            "QwenImageTransformer2DModel", "SD3Transformer2DModel", "HunyuanVideo15Transformer3DModel",
            "UNetMotionModel", "ZImageTransformer2DModel",
        )
    }  # fmt: skip
    assert [name for name, has in plans.items() if has] == [
        "WanTransformer3DModel", "LTXVideoTransformer3DModel", "FluxTransformer2DModel", "QwenImageTransformer2DModel",
    ]  # fmt: skip
