"""Tiny text-to-image pipelines of flow models, as data: text and picture run through the same blocks."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import (
    ALLOW_ALL,
    CAUSAL_VAE,
    CLIP,
    EIGHTH_VAE,
    FLOW,
    KL_VAE,
    LANGUAGE_MODEL,
    QWEN2_5_VL,
    QWEN2_VL_PROCESSOR,
    QWEN3_VL,
    QWEN3_VL_PROCESSOR,
    SHIFTED_FLOW,
    T5,
    VOCABULARY,
)
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.flow_images import GEMMA2, QWEN3, SHORT, SIZE, UNGUIDED
from tests.generation.tiny_pipelines.flow_images import PIPELINES as FLOW_IMAGES
from tests.generation.tiny_pipelines.flux_images import FLUX2_VAE
from tests.generation.tiny_pipelines.flux_images import PIPELINES as FLUX_IMAGES

PIPELINES: dict[str, Tiny] = {}

QWEN_VAE = FLOW_IMAGES["qwen_image"].components["vae"]
PIPELINES["lumina2"] = Tiny(
    "Lumina2Pipeline",
    {
        "transformer": (
            "Lumina2Transformer2DModel",
            {
                "sample_size": 8,
                "in_channels": 4,
                "hidden_size": 32,
                "num_layers": 1,
                "num_refiner_layers": 1,
                "num_attention_heads": 2,
                "num_kv_heads": 1,
                "multiple_of": 16,
                "axes_dim_rope": (8, 4, 4),
                "axes_lens": (32, 16, 16),
                "cap_feat_dim": 16,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 6.0}),
        "vae": EIGHTH_VAE,
        "text_encoder": GEMMA2,
    },
    {
        "height": 64,
        "width": 64,
        "guidance_scale": 4.0,
        "pipeline_args": {"max_sequence_length": 16, "system_prompt": "an"},
    },
    unguided=UNGUIDED,
)
PIPELINES["lumina"] = Tiny(
    "LuminaPipeline",
    {
        "transformer": (
            "LuminaNextDiT2DModel",
            {
                "sample_size": 8,
                "in_channels": 4,
                "hidden_size": 16,
                "num_layers": 1,
                "num_attention_heads": 2,
                "num_kv_heads": 1,
                "multiple_of": 16,
                "cross_attention_dim": 16,
            },
        ),
        "scheduler": FLOW,
        "vae": EIGHTH_VAE,
        "text_encoder": ("GemmaForCausalLM", LANGUAGE_MODEL),
    },
    {
        "height": 64,
        "width": 64,
        "guidance_scale": 4.0,
        "pipeline_args": {"max_sequence_length": 8, "clean_caption": False},
    },
    unguided=UNGUIDED,
)
PIPELINES["z_image"] = Tiny(
    "ZImagePipeline",
    {
        "transformer": (
            "ZImageTransformer2DModel",
            {
                "in_channels": 4,
                "dim": 32,
                "n_layers": 1,
                "n_refiner_layers": 1,
                "n_heads": 2,
                "n_kv_heads": 2,
                "cap_feat_dim": 16,
                "axes_dims": [8, 4, 4],
                "axes_lens": [64, 16, 16],
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": KL_VAE,
        "text_encoder": QWEN3,
    },
    {**SIZE, "guidance_scale": 5.0, **SHORT},
    unguided={"guidance_scale": 0.0},
)
PIPELINES["omnigen"] = Tiny(
    "OmniGenPipeline",
    {
        "transformer": (
            "OmniGenTransformer2DModel",
            {
                "in_channels": 4,
                "hidden_size": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "intermediate_size": 16,
                "num_layers": 1,
                "pad_token_id": 0,
                "vocab_size": len(VOCABULARY),
                "rope_scaling": {"long_factor": [1.0] * 4, "short_factor": [1.0] * 4},
                "pos_embed_max_size": 8,
                "time_step_dim": 16,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"invert_sigmas": True, "num_train_timesteps": 1}),
        "vae": EIGHTH_VAE,
    },
    {"height": 32, "width": 32, "guidance_scale": 2.5},
    unguided=UNGUIDED,
)
PIPELINES["ernie_image"] = Tiny(
    "ErnieImagePipeline",
    {
        "transformer": (
            "ErnieImageTransformer2DModel",
            {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "num_layers": 1,
                "ffn_hidden_size": 32,
                "in_channels": 16,
                "out_channels": 16,
                "text_in_dim": 16,
                "rope_axes_dim": (8, 4, 4),
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        "vae": FLUX2_VAE,
        "text_encoder": ("Mistral3Model", FLUX_IMAGES["flux2"].components["text_encoder"][1]),
    },
    {**SIZE, "guidance_scale": 4.0},
    unguided=UNGUIDED,
    empty=("pe", "pe_tokenizer"),
)
PIPELINES["prx"] = Tiny(
    "PRXPipeline",
    {
        "transformer": (
            "PRXTransformer2DModel",
            {
                "in_channels": 4,
                "context_in_dim": 16,
                "hidden_size": 16,
                "mlp_ratio": 2.0,
                "num_heads": 2,
                "depth": 1,
                "axes_dim": [4, 4],
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        "vae": KL_VAE,
        "text_encoder": (
            "T5GemmaEncoderModel",
            {"encoder": LANGUAGE_MODEL, "decoder": LANGUAGE_MODEL, "is_encoder_decoder": False},
        ),
    },
    # guided, its timestep fits one row a call alone
    {**SIZE, "guidance_scale": 1.0, "pipeline_args": {"use_resolution_binning": False}},
)
PIPELINES["nucleus_moe"] = Tiny(
    "NucleusMoEImagePipeline",
    {
        "transformer": (
            "NucleusMoEImageTransformer2DModel",
            {
                "in_channels": 16,
                "out_channels": 4,
                "num_layers": 2,
                "attention_head_dim": 32,
                "num_attention_heads": 2,
                "joint_attention_dim": 16,
                "axes_dims_rope": (8, 12, 12),
                "dense_moe_strategy": "leave_first_block_dense",
                "num_experts": 2,
                "moe_intermediate_dim": 16,
                "capacity_factors": [1.0, 1.0],
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": QWEN_VAE,
        "text_encoder": ("Qwen3VLForConditionalGeneration", QWEN3_VL),
        "processor": QWEN3_VL_PROCESSOR,
    },
    {
        "height": 32,
        "width": 32,
        "guidance_scale": 4.0,
        "negative_prompt": "blurry",
        "pipeline_args": {"max_sequence_length": 64, "return_index": -1},
    },
    unguided=UNGUIDED,
    tokenizers=(),
)
PIPELINES["krea2"] = Tiny(
    "Krea2Pipeline",
    {
        "transformer": (
            "Krea2Transformer2DModel",
            {
                "in_channels": 16,
                "num_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "intermediate_size": 16,
                "timestep_embed_dim": 16,
                "text_hidden_dim": 16,
                "num_text_layers": 2,
                "text_num_attention_heads": 2,
                "text_num_key_value_heads": 2,
                "text_intermediate_size": 16,
                "num_layerwise_text_blocks": 1,
                "num_refiner_text_blocks": 1,
                "axes_dims_rope": (8, 4, 4),
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": QWEN_VAE,
        "text_encoder": ("Qwen3VLModel", QWEN3_VL),
    },
    {"height": 32, "width": 32, "guidance_scale": 4.5, "pipeline_args": {"max_sequence_length": 16}},
    unguided={"guidance_scale": 0.0},
    settings={"text_encoder_select_layers": (1, 2)},
)
PIPELINES["kandinsky5_image"] = Tiny(
    "Kandinsky5T2IPipeline",
    {
        "transformer": (
            "Kandinsky5Transformer3DModel",
            {
                "in_visual_dim": 4,
                "out_visual_dim": 4,
                "in_text_dim": 16,
                "in_text_dim2": 16,
                "time_dim": 16,
                "model_dim": 32,
                "ff_dim": 32,
                "num_text_blocks": 1,
                "num_visual_blocks": 1,
                "axes_dims": (8, 4, 4),
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 5.0}),
        "vae": EIGHTH_VAE,
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "tokenizer": QWEN2_VL_PROCESSOR,
        "text_encoder_2": ("CLIPTextModel", {**CLIP, "max_position_embeddings": 77}),
    },
    {"height": 32, "width": 32, "guidance_scale": 3.5, "pipeline_args": {"max_sequence_length": 16}},
    unguided=UNGUIDED,
    tokenizers=("tokenizer_2",),
    own_rows=False,
    attributes={"resolutions": [(32, 32)]},
)
PIPELINES["qwen_image_21"] = Tiny(
    "QwenImage21Pipeline",
    {
        "transformer": (
            "QwenImage21Transformer2DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "context_in_dim": 16,
                "axes_dims_rope": (8, 4, 4),
            },
        ),
        "scheduler": SHIFTED_FLOW,
        "vae": (
            "AutoencoderKLQwenImage21",
            {
                "base_dim": 4,
                "decoder_base_dim": 4,
                "z_dim": 4,
                "dim_mult": [1] * 5,
                "num_res_blocks": 1,
                "latents_mean": [0.0] * 4,
                "latents_std": [1.0] * 4,
            },
        ),
        "text_encoder": ("Qwen3VLForConditionalGeneration", QWEN3_VL),
        "processor": QWEN3_VL_PROCESSOR,
    },
    {
        "height": 64,
        "width": 64,
        "negative_prompt": "blurry",
        "pipeline_args": {"true_cfg_scale": 3.0, "use_kv_cache": False},
    },
    unguided={"pipeline_args": {"true_cfg_scale": 1.0, "use_kv_cache": False}},
    tokenizers=(),
    own_rows=False,
)
PIPELINES["ideogram4"] = Tiny(
    "Ideogram4Pipeline",
    {
        **dict.fromkeys(
            ("transformer", "unconditional_transformer"),
            (
                "Ideogram4Transformer2DModel",
                {
                    "in_channels": 16,
                    "num_layers": 1,
                    "attention_head_dim": 16,
                    "num_attention_heads": 2,
                    "intermediate_size": 16,
                    "adaln_dim": 16,
                    "llm_features_dim": 16 * 13,
                    "mrope_section": (4, 2, 2),
                },
            ),
        ),
        "scheduler": FLOW,
        "vae": FLUX2_VAE,
        "text_encoder": (
            "Qwen3VLModel",
            {**QWEN3_VL, "text_config": {**QWEN3_VL["text_config"], "num_hidden_layers": 36}},
        ),
    },
    {
        **SIZE,
        "guidance_scale": 7.0,
        "pipeline_args": {"max_sequence_length": 16, "guidance_schedule": None},
    },
    unguided=UNGUIDED,
    empty=("prompt_enhancer_head",),
)
PIPELINES["cosmos2_image"] = Tiny(
    "Cosmos2TextToImagePipeline",
    {
        "transformer": (
            "CosmosTransformer3DModel",
            {
                "in_channels": 4,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "num_layers": 1,
                "mlp_ratio": 2.0,
                "text_embed_dim": 32,
                "adaln_lora_dim": 4,
                "max_size": (4, 32, 32),
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_karras_sigmas": True}),
        "vae": (
            "AutoencoderKLWan",
            {
                **CAUSAL_VAE,
                "z_dim": 4,
                "latents_mean": [0.0] * 4,
                "latents_std": [1.0] * 4,
                "temperal_downsample": [False, True, True],
            },
        ),
        "text_encoder": T5,
        "safety_checker": ALLOW_ALL,
    },
    {
        "height": 32,
        "width": 32,
        "guidance_scale": 7.0,
        "negative_prompt": "blurry",
        "transition": {"name": "ddim", "noise_level": 1.0},
        **SHORT,
    },
    unguided={"guidance_scale": 0.0},
)
PIPELINES["prx_pixel"] = replace(
    PIPELINES["prx"],
    pipeline="PRXPixelPipeline",
    components={
        "transformer": (
            "PRXTransformer2DModel",
            {
                **PIPELINES["prx"].components["transformer"][1],
                "in_channels": 3,
                "bottleneck_size": 8,
                "resolution_embeds": True,
            },
        ),
        "scheduler": PIPELINES["prx"].components["scheduler"],
        "text_encoder": ("Qwen3VLTextModel", QWEN3_VL["text_config"]),
    },
)
