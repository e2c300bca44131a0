"""Tiny text-to-image pipelines of flow models, as data: text and image have separate weights."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import (
    CAUSAL_VAE,
    CLIP,
    FLOW,
    KL_VAE,
    LANGUAGE_MODEL,
    QWEN2_5_VL,
    T5,
)
from tests.generation.tiny_pipelines.factory import Tiny

SIZE = {"height": 16, "width": 16}
SHORT = {"pipeline_args": {"max_sequence_length": 8}}
UNGUIDED = {"guidance_scale": 1.0}
GEMMA2 = ("Gemma2Model", LANGUAGE_MODEL)
QWEN3 = ("Qwen3Model", LANGUAGE_MODEL)

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
        unguided={"guidance_scale": 1.0},
        tokenizers=("tokenizer", "tokenizer_2", "tokenizer_3"),
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
            "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        },
        {"height": 32, "width": 32, "negative_prompt": "blurry", "pipeline_args": {"true_cfg_scale": 3.0}},
        unguided={"pipeline_args": {"true_cfg_scale": 1.0}},
    ),
}

PIPELINES["sana"] = Tiny(
    "SanaPipeline",
    {
        "transformer": (
            "SanaTransformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "num_layers": 2,
                "num_cross_attention_heads": 2,
                "cross_attention_head_dim": 8,
                "cross_attention_dim": 16,
                "caption_channels": 16,
                "sample_size": 8,
            },
        ),
        "scheduler": (
            "DPMSolverMultistepScheduler",
            {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
        ),
        "vae": (
            "AutoencoderDC",
            {
                "latent_channels": 4,
                "attention_head_dim": 4,
                "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
                "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
                "encoder_block_out_channels": (8, 8),
                "decoder_block_out_channels": (8, 8),
                "encoder_layers_per_block": (1, 1),
                "decoder_layers_per_block": (1, 1),
                "encoder_qkv_multiscales": ((), (5,)),
                "decoder_qkv_multiscales": ((), (5,)),
            },
        ),
        "text_encoder": GEMMA2,
    },
    {
        "height": 32,
        "width": 32,
        "guidance_scale": 4.5,
        "pipeline_args": {
            "max_sequence_length": 8,
            "use_resolution_binning": False,
            "complex_human_instruction": None,
        },
    },
    unguided=UNGUIDED,
)
PIPELINES["cogview4"] = Tiny(
    "CogView4Pipeline",
    {
        "transformer": (
            "CogView4Transformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_layers": 1,
                "attention_head_dim": 8,
                "num_attention_heads": 2,
                "text_embed_dim": 16,
                "time_embed_dim": 8,
                "condition_dim": 4,
                "sample_size": 8,
            },
        ),
        "scheduler": (
            "FlowMatchEulerDiscreteScheduler",
            {"use_dynamic_shifting": True, "base_shift": 0.25, "max_shift": 0.75, "time_shift_type": "linear"},
        ),
        "vae": KL_VAE,
        "text_encoder": ("GlmModel", LANGUAGE_MODEL),
        "tokenizer": ("word_tokenizer", {"padding_side": "left"}),
    },
    {**SIZE, "guidance_scale": 5.0, "pipeline_args": {"max_sequence_length": 16}},
    unguided=UNGUIDED,
    tokenizers=(),
)
PIPELINES["aura_flow"] = Tiny(
    "AuraFlowPipeline",
    {
        "transformer": (
            "AuraFlowTransformer2DModel",
            {
                "sample_size": 8,
                "num_mmdit_layers": 2,
                "num_single_dit_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 32,
                "caption_projection_dim": 32,
                "pos_embed_max_size": 64,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 1.73}),
        "vae": KL_VAE,
        "text_encoder": ("UMT5EncoderModel", T5[1]),
    },
    {**SIZE, "guidance_scale": 7.0, **SHORT},
    unguided=UNGUIDED,
)
PIPELINES["hunyuan_image"] = Tiny(
    "HunyuanImagePipeline",
    {
        "transformer": (
            "HunyuanImageTransformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "num_layers": 1,
                "num_single_layers": 1,
                "num_refiner_layers": 1,
                "text_embed_dim": 16,
                "text_embed_2_dim": 32,
                "rope_axes_dim": (4, 4),
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 5.0}),
        "vae": (
            "AutoencoderKLHunyuanImage",
            {
                "in_channels": 3,
                "out_channels": 3,
                "latent_channels": 4,
                "block_out_channels": (32, 32),
                "layers_per_block": 1,
                "spatial_compression_ratio": 2,
                "sample_size": 16,
                "scaling_factor": 0.75,
            },
        ),
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "text_encoder_2": T5,
        "guider": ("AdaptiveProjectedMixGuidance", {"adaptive_projected_guidance_start_step": 1}),
        "ocr_guider": ("AdaptiveProjectedMixGuidance", {"adaptive_projected_guidance_start_step": 2}),
    },
    {**SIZE, "negative_prompt": "blurry"},
    tokenizers=("tokenizer", "tokenizer_2"),
    attributes={"tokenizer_max_length": 16, "tokenizer_2_max_length": 8},
)
PIPELINES["hunyuan_image_distilled"] = replace(
    PIPELINES["hunyuan_image"],
    components={
        **{part: each for part, each in PIPELINES["hunyuan_image"].components.items() if "guider" not in part},
        "transformer": (
            "HunyuanImageTransformer2DModel",
            {
                **PIPELINES["hunyuan_image"].components["transformer"][1],
                "guidance_embeds": True,
                "use_meanflow": True,
            },
        ),
    },
    sampling=SIZE,
    empty=("guider", "ocr_guider"),
)
PIPELINES["hidream"] = Tiny(
    "HiDreamImagePipeline",
    {
        "transformer": (
            "HiDreamImageTransformer2DModel",
            {
                "patch_size": 2,
                "in_channels": 4,
                "out_channels": 4,
                "num_layers": 1,
                "num_single_layers": 1,
                "attention_head_dim": 8,
                "num_attention_heads": 2,
                "caption_channels": [32, 16],
                "text_emb_dim": 32,
                "num_routed_experts": 2,
                "num_activated_experts": 1,
                "axes_dims_rope": (4, 2, 2),
                "max_resolution": (16, 16),
                "llama_layers": (0, 1),
                "force_inference_output": True,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        "vae": KL_VAE,
        "text_encoder": ("CLIPTextModelWithProjection", CLIP),
        "text_encoder_2": ("CLIPTextModelWithProjection", CLIP),
        "text_encoder_3": T5,
        "text_encoder_4": ("LlamaForCausalLM", LANGUAGE_MODEL),
    },
    {**SIZE, "guidance_scale": 5.0, **SHORT},
    unguided=UNGUIDED,
    attributes={"default_sample_size": 8},
    tokenizers=("tokenizer", "tokenizer_2", "tokenizer_3", "tokenizer_4"),
)
PIPELINES["sana_pag"] = replace(
    PIPELINES["sana"],
    pipeline="SanaPAGPipeline",
    components={**PIPELINES["sana"].components, "scheduler": FLOW},
    sampling={
        **PIPELINES["sana"].sampling,
        "pipeline_args": {**PIPELINES["sana"].sampling["pipeline_args"], "pag_scale": 3.0},
    },
    unguided={
        "guidance_scale": 1.0,
        "pipeline_args": {**PIPELINES["sana"].sampling["pipeline_args"], "pag_scale": 0.0},
    },
    settings={"pag_applied_layers": ["transformer_blocks.0"]},
)
PIPELINES["sd3_pag"] = replace(
    PIPELINES["sd3"],
    pipeline="StableDiffusion3PAGPipeline",
    unguided={"guidance_scale": 1.0, "pipeline_args": {"max_sequence_length": 8, "pag_scale": 0.0}},
    settings={"pag_applied_layers": ["blocks.0"]},
)
