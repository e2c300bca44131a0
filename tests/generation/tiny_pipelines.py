"""Tiny pipelines with random weights: real classes of diffusers and transformers, described as data.

A pipeline is a class name, the classes and configurations of its components, and the sampling that exercises it.
`build("sd3")` makes one in a fraction of a second; equal names give equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import diffusers
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mmrl.config.sampling import SamplingConfig

WORDS = "<pad> <unk> </s> a an the of and red green blue yellow circle square triangle big small blurry"
VOCABULARY = {word: number for number, word in enumerate(WORDS.split())}
EOS = VOCABULARY["</s>"]

Component = tuple[str, dict[str, Any]]

FLOW: Component = ("FlowMatchEulerDiscreteScheduler", {})
CLIP = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 16,
    "projection_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "eos_token_id": EOS,
    "bos_token_id": EOS,
    "pad_token_id": 0,
}
T5: Component = (
    "T5EncoderModel",
    {"vocab_size": len(VOCABULARY), "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
)
KL_VAE: Component = (
    "AutoencoderKL",
    {
        "block_out_channels": (8, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": 4,
        "sample_size": 16,
        "shift_factor": 0.0,
    },
)
CAUSAL_VAE = {"base_dim": 4, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}


@dataclass(frozen=True)
class Tiny:
    """A pipeline class as data."""

    pipeline: str
    components: dict[str, Component]
    sampling: dict[str, Any]
    tokenizers: tuple[str, ...] = ("tokenizer",)
    empty: tuple[str, ...] = ()  # components that are None
    settings: dict[str, Any] = field(default_factory=dict)  # further arguments of the pipeline


PIPELINES = {
    "sd3": Tiny(
        "StableDiffusion3Pipeline",
        {
            "transformer": (
                "SD3Transformer2DModel",
                {
                    "sample_size": 8,
                    "patch_size": 2,
                    "in_channels": 4,
                    "out_channels": 4,
                    "num_layers": 2,
                    "attention_head_dim": 8,
                    "num_attention_heads": 2,
                    "caption_projection_dim": 16,
                    "joint_attention_dim": 32,
                    "pooled_projection_dim": 32,
                    "pos_embed_max_size": 8,
                    "qk_norm": "rms_norm",
                },
            ),
            "scheduler": FLOW,
            "vae": KL_VAE,
            "text_encoder": ("CLIPTextModelWithProjection", CLIP),
            "text_encoder_2": ("CLIPTextModelWithProjection", CLIP),
            "text_encoder_3": T5,
        },
        {"height": 16, "width": 16, "guidance_scale": 3.0, "pipeline_args": {"max_sequence_length": 8}},
        tokenizers=("tokenizer", "tokenizer_2", "tokenizer_3"),
    ),
    "flux": Tiny(
        "FluxPipeline",
        {
            "transformer": (
                "FluxTransformer2DModel",
                {
                    "patch_size": 1,
                    "in_channels": 16,
                    "num_layers": 1,
                    "num_single_layers": 1,
                    "attention_head_dim": 16,
                    "num_attention_heads": 2,
                    "joint_attention_dim": 32,
                    "pooled_projection_dim": 16,
                    "axes_dims_rope": (4, 4, 8),
                    "guidance_embeds": True,
                },
            ),
            "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True}),
            "vae": KL_VAE,
            "text_encoder": ("CLIPTextModel", CLIP),
            "text_encoder_2": T5,
        },
        {"height": 16, "width": 16, "guidance_scale": 3.5, "pipeline_args": {"max_sequence_length": 8}},
        tokenizers=("tokenizer", "tokenizer_2"),
    ),
    "qwen_image": Tiny(
        "QwenImagePipeline",
        {
            "transformer": (
                "QwenImageTransformer2DModel",
                {
                    "patch_size": 2,
                    "in_channels": 16,
                    "out_channels": 4,
                    "num_layers": 2,
                    "attention_head_dim": 16,
                    "num_attention_heads": 2,
                    "joint_attention_dim": 16,
                    "axes_dims_rope": (8, 4, 4),
                },
            ),
            "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True, "shift_terminal": 0.02}),
            "vae": (
                "AutoencoderKLQwenImage",
                {**CAUSAL_VAE, "z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
            ),
            "text_encoder": (
                "Qwen2_5_VLForConditionalGeneration",
                {
                    "text_config": {
                        "vocab_size": len(VOCABULARY),
                        "hidden_size": 16,
                        "intermediate_size": 16,
                        "num_hidden_layers": 2,
                        "num_attention_heads": 2,
                        "num_key_value_heads": 2,
                        "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
                        "rope_theta": 1000000.0,
                    },
                    "vision_config": {
                        "depth": 1,
                        "hidden_size": 16,
                        "intermediate_size": 16,
                        "num_heads": 2,
                        "out_hidden_size": 16,
                    },
                },
            ),
        },
        {"height": 32, "width": 32, "negative_prompt": "blurry", "pipeline_args": {"true_cfg_scale": 3.0}},
    ),
    "wan": Tiny(
        "WanPipeline",
        {
            "transformer": (
                "WanTransformer3DModel",
                {
                    "patch_size": (1, 2, 2),
                    "num_attention_heads": 2,
                    "attention_head_dim": 12,
                    "in_channels": 16,
                    "out_channels": 16,
                    "text_dim": 32,
                    "freq_dim": 32,
                    "ffn_dim": 32,
                    "num_layers": 2,
                    "cross_attn_norm": True,
                    "qk_norm": "rms_norm_across_heads",
                    "rope_max_seq_len": 32,
                },
            ),
            "scheduler": (
                "UniPCMultistepScheduler",
                {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
            ),
            "vae": ("AutoencoderKLWan", {**CAUSAL_VAE, "temperal_downsample": [False, True, True]}),
            "text_encoder": T5,
        },
        {
            "height": 16,
            "width": 16,
            "num_frames": 5,
            "guidance_scale": 4.0,
            "pipeline_args": {"max_sequence_length": 8},
        },
        empty=("transformer_2",),
    ),
}

PIPELINES["wan22"] = replace(
    PIPELINES["wan"],
    components=PIPELINES["wan"].components | {"transformer_2": PIPELINES["wan"].components["transformer"]},
    settings={"boundary_ratio": 0.8},
    empty=(),
)
PIPELINES["sd15"] = Tiny(
    "StableDiffusionPipeline",
    {
        "unet": (
            "UNet2DConditionModel",
            {
                "block_out_channels": (8, 16),
                "layers_per_block": 1,
                "sample_size": 8,
                "in_channels": 4,
                "out_channels": 4,
                "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
                "cross_attention_dim": 16,
                "attention_head_dim": 4,
                "norm_num_groups": 4,
            },
        ),
        "scheduler": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}),
        "vae": KL_VAE,
        "text_encoder": ("CLIPTextModel", CLIP),
    },
    {"height": 16, "width": 16, "guidance_scale": 3.0, "transition": {"name": "ddim", "noise_level": 1.0}},
    empty=("safety_checker", "feature_extractor", "image_encoder"),
    settings={"requires_safety_checker": False},
)


def build(name: str, seed: int = 0) -> diffusers.DiffusionPipeline:
    """A tiny pipeline; the global random state is left as it was."""
    tiny = PIPELINES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: dict[str, Any] = {part: _component(*described) for part, described in tiny.components.items()}
    parts |= {part: word_tokenizer() for part in tiny.tokenizers} | dict.fromkeys(tiny.empty)
    pipeline = getattr(diffusers, tiny.pipeline)(**parts, **tiny.settings)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sampling(name: str, **changes: Any) -> SamplingConfig:
    """Six flow-SDE steps of a tiny pipeline."""
    defaults = {"steps": 6, "transition": {"name": "flow_sde", "noise_level": 0.7}}
    return SamplingConfig(**{**defaults, **PIPELINES[name].sampling, **changes})


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A real tokenizer that knows a few words."""
    backend = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", EOS)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", model_max_length=16
    )


def _component(name: str, config: dict[str, Any]) -> Any:
    if hasattr(diffusers, name):
        made = getattr(diffusers, name)(**config)
    else:
        kind = getattr(transformers, name)
        made = kind(kind.config_class(**config))
    return made.eval() if isinstance(made, torch.nn.Module) else made
