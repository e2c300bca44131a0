"""Tiny pipelines of the Flux family, as data: separate weights of text and image, then blocks that share them."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import (
    CAUSAL_VAE,
    CLIP,
    KL_VAE,
    LANGUAGE_MODEL,
    QWEN2_5_VL,
    QWEN2_VL_PROCESSOR,
    SHIFTED_FLOW,
    T5,
)
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.flow_images import QWEN3, SHORT, SIZE, UNGUIDED

PIPELINES = {
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
}

FLUX2_VAE = ("AutoencoderKLFlux2", {key: value for key, value in KL_VAE[1].items() if key != "shift_factor"})
PIPELINES["flux2"] = Tiny(
    "Flux2Pipeline",
    {
        "transformer": (
            "Flux2Transformer2DModel",
            {
                "in_channels": 16,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 32,
                "timestep_guidance_channels": 16,
                "axes_dims_rope": (4, 4, 4, 4),
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": FLUX2_VAE,
        "text_encoder": (
            "Mistral3ForConditionalGeneration",
            {
                "text_config": {"model_type": "mistral", **LANGUAGE_MODEL},
                "vision_config": {
                    "model_type": "pixtral",
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "image_size": 16,
                    "patch_size": 4,
                },
            },
        ),
    },
    {
        **SIZE,
        "guidance_scale": 4.0,
        "pipeline_args": {"max_sequence_length": 64, "text_encoder_out_layers": [1, 2]},
    },
)
PIPELINES["flux2_klein"] = replace(
    PIPELINES["flux2"],
    pipeline="Flux2KleinPipeline",
    components={
        **PIPELINES["flux2"].components,
        "transformer": (
            "Flux2Transformer2DModel",
            {**PIPELINES["flux2"].components["transformer"][1], "guidance_embeds": False},
        ),
        "text_encoder": ("Qwen3ForCausalLM", LANGUAGE_MODEL),
    },
    sampling={
        **PIPELINES["flux2"].sampling,
        "pipeline_args": {"max_sequence_length": 8, "text_encoder_out_layers": [1, 2]},
    },
    unguided=UNGUIDED,
)
PIPELINES["chroma"] = Tiny(
    "ChromaPipeline",
    {
        "transformer": (
            "ChromaTransformer2DModel",
            {
                "in_channels": 16,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 32,
                "axes_dims_rope": (4, 4, 8),
                "approximator_num_channels": 16,
                "approximator_hidden_dim": 16,
                "approximator_layers": 1,
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": KL_VAE,
        "text_encoder": T5,
    },
    {**SIZE, "guidance_scale": 5.0, "negative_prompt": "blurry", **SHORT},
    unguided=UNGUIDED,
)
PIPELINES["bria"] = Tiny(
    "BriaPipeline",
    {
        "transformer": (
            "BriaTransformer2DModel",
            {
                "in_channels": 16,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 8,
                "num_attention_heads": 2,
                "joint_attention_dim": 32,
                "axes_dims_rope": [2, 2, 4],
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": KL_VAE,
        "text_encoder": T5,
    },
    {**SIZE, "guidance_scale": 5.0, **SHORT},
    unguided=UNGUIDED,
)
PIPELINES["bria_fibo"] = Tiny(
    "BriaFiboPipeline",
    {
        "transformer": (
            "BriaFiboTransformer2DModel",
            {
                "in_channels": 16,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 8,
                "num_attention_heads": 2,
                "joint_attention_dim": 32,
                "text_encoder_dim": 16,
                "axes_dims_rope": [2, 2, 4],
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": (
            "AutoencoderKLWan",
            {**CAUSAL_VAE, "in_channels": 12, "out_channels": 12, "patch_size": 2, "is_residual": True},
        ),
        "text_encoder": ("SmolLM3ForCausalLM", LANGUAGE_MODEL),
    },
    {
        "height": 64,
        "width": 64,
        "guidance_scale": 5.0,
        "negative_prompt": "blurry",
        "pipeline_args": {"max_sequence_length": 16},
    },
    unguided=UNGUIDED,
)
PIPELINES["ovis_image"] = Tiny(
    "OvisImagePipeline",
    {
        "transformer": (
            "OvisImageTransformer2DModel",
            {
                "in_channels": 16,
                "out_channels": 16,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 16,
                "axes_dims_rope": (4, 4, 8),
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": KL_VAE,
        "text_encoder": QWEN3,
    },
    {**SIZE, "guidance_scale": 5.0, "pipeline_args": {"max_sequence_length": 16}},
    unguided=UNGUIDED,
)
PIPELINES["longcat_image"] = Tiny(
    "LongCatImagePipeline",
    {
        "transformer": (
            "LongCatImageTransformer2DModel",
            {
                "in_channels": 64,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 16,
                "pooled_projection_dim": 16,
                "axes_dims_rope": [4, 4, 8],
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": ("AutoencoderKL", {**KL_VAE[1], "latent_channels": 16}),
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "text_processor": QWEN2_VL_PROCESSOR,
    },
    {**SIZE, "guidance_scale": 4.5, "pipeline_args": {"enable_prompt_rewrite": False}},
    unguided=UNGUIDED,
    attributes={"tokenizer_max_length": 16},
)
