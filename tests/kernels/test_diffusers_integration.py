from dataclasses import replace

import pytest
import torch
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel

from mmrl_kernels.integrations.diffusers import (
    AttentionChoice,
    Facts,
    choose_attention,
    inspect_model,
    unsupported_reason,
    use_attention,
)
from mmrl_kernels.registry import KernelError

ON_A_GPU = Facts("Model", "cuda", half=True, trains=True, installed=frozenset(), dependents=4)


def flux():
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    return model, {
        "hidden_states": random(1, 16, 4),
        "encoder_hidden_states": random(1, 8, 32),
        "pooled_projections": random(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
    }


def wan():
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    return model, {
        "hidden_states": random(1, 4, 2, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": random(1, 6, 16),
    }


def qwen_image():
    model = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    return model, {
        "hidden_states": random(1, 16, 16),
        "encoder_hidden_states": random(1, 7, 16),
        "encoder_hidden_states_mask": torch.ones(1, 7, dtype=torch.long),
        "timestep": torch.tensor([0.5]),
        "img_shapes": [(1, 4, 4)],
    }


def sd3():
    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        out_channels=4,
    )


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("build", [flux, wan, qwen_image])
def test_cpu_attention_equals_native(build):
    torch.manual_seed(0)
    model, arguments = build()
    model.requires_grad_(False)
    untouched = model(**arguments).sample

    assert use_attention(model) == AttentionChoice("sdpa", reason_of(model))
    assert torch.equal(model(**arguments).sample, untouched)

    choice = use_attention(model, "flex")
    assert choice.name == "flex" and "compile the model" in choice.reason
    assert {a.processor._attention_backend.value for a in dependents(model)} == {"flex"}
    flexed = model(**arguments).sample
    torch.testing.assert_close(flexed, untouched, atol=2e-6, rtol=1e-5)

    assert use_attention(model, "sdpa").reason == "requested by name"
    assert torch.equal(model(**arguments).sample, untouched)


def reason_of(model):
    return f"xformers: {unsupported_reason('xformers', inspect_model(model))}"


def dependents(model):
    return [m for m in model.modules() if hasattr(getattr(m, "processor", None), "_attention_backend")]


def test_attention_choice_of_one_model_leaves_others():
    """diffusers' own `set_attention_backend` changes the default of the whole process too."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    model, _ = flux()
    use_attention(model.requires_grad_(False), "flex")
    assert _AttentionBackendRegistry.get_active_backend()[0].value == "native"


def test_xformers_on_a_cpu_raises_with_a_remedy():
    with pytest.raises(KernelError, match=r"Flux\w+ is on cpu.*CUDA operators only.*choose auto or sdpa"):
        use_attention(flux()[0], "xformers")


def test_flex_for_training_on_a_cpu_raises():
    with pytest.raises(KernelError, match="no backward pass"):
        use_attention(flux()[0], "flex")


def test_sd3_processors_ignore_the_backend_with_a_reason():
    model = sd3().requires_grad_(False)
    with pytest.raises(KernelError, match=r"no attention module of SD3\w+ follows .*2 x JointAttnProcessor2_0"):
        use_attention(model, "flex")
    assert use_attention(model).name == "sdpa"
    assert inspect_model(model).swappable


def test_models_outside_diffusers_keep_their_attention():
    plain = torch.nn.Linear(2, 2).requires_grad_(False)
    assert use_attention(plain).name == "sdpa"
    with pytest.raises(KernelError, match="no attention modules that diffusers knows"):
        use_attention(plain, "flex")


def test_gpu_gets_xformers_where_supported_or_sdpa_with_the_reason():
    with_xformers = replace(ON_A_GPU, installed=frozenset({"xformers", "flash_attn"}))
    assert choose_attention("auto", with_xformers) == AttentionChoice("xformers", "first choice")
    assert choose_attention("auto", ON_A_GPU).reason == "xformers: xformers is not installed (pip install xformers)"
    assert choose_attention("auto", replace(with_xformers, half=False)).name == "sdpa"
    unsupported_layers = replace(with_xformers, dependents=0, others=("JointAttnProcessor2_0",) * 3)
    assert "3 x JointAttnProcessor2_0" in choose_attention("auto", unsupported_layers).reason
    assert choose_attention("auto", replace(unsupported_layers, swappable=True)).name == "xformers"


def test_flash_is_used_on_request_where_supported():
    with_flash = replace(ON_A_GPU, installed=frozenset({"flash_attn"}))
    assert choose_attention("auto", with_flash).name == "sdpa"
    assert choose_attention("flash", with_flash).name == "flash"
    for broken, expected in (
        (ON_A_GPU, "pip install flash-attn"),
        (replace(with_flash, half=False), "half precision"),
        (replace(with_flash, device="cpu"), "is on cpu"),
        (replace(with_flash, dependents=0, others=("AttnProcessor2_0",)), "1 x AttnProcessor2_0"),
    ):
        with pytest.raises(KernelError, match=expected):
            choose_attention("flash", broken)


def test_processors_without_backend_support_are_named():
    mixed = replace(ON_A_GPU, dependents=3, others=("A", "B", "B"))
    assert (
        "3 attention modules follow, and these keep their processor: 1 x A, 2 x B"
        in choose_attention("flex", mixed).reason
    )


def test_unknown_backends_raise():
    with pytest.raises(KernelError, match="expected one of auto, sdpa, flex, xformers, flash"):
        use_attention(torch.nn.Linear(1, 1), "sage")
