"""Tiny video pipelines, as data."""

from __future__ import annotations

from dataclasses import replace

from tiny.components import CAUSAL_VAE, CLIP, T5, VOCABULARY
from tiny.factory import Tiny

PIPELINES = {
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
        unguided={"guidance_scale": 1.0},
        empty=("transformer_2",),
    ),
}

PIPELINES["wan22"] = replace(
    PIPELINES["wan"],
    components=PIPELINES["wan"].components | {"transformer_2": PIPELINES["wan"].components["transformer"]},
    settings={"boundary_ratio": 0.8},
    empty=(),
)

LTX_VAE = {
    "latent_channels": 8,
    "block_out_channels": (8, 8),
    "decoder_block_out_channels": (8, 8),
    "layers_per_block": (1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1),
    "spatio_temporal_scaling": (True, True),
    "decoder_spatio_temporal_scaling": (True, True),
    "decoder_inject_noise": (False, False, False),
    "upsample_residual": (False, False),
    "upsample_factor": (1, 1),
    "patch_size": 2,
    "encoder_causal": True,
    "decoder_causal": False,
}
PIPELINES["ltx"] = Tiny(
    "LTXPipeline",
    {
        "transformer": (
            "LTXVideoTransformer3DModel",
            {
                "in_channels": 8,
                "out_channels": 8,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "cross_attention_dim": 16,
                "num_layers": 1,
                "caption_channels": 32,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True, "shift_terminal": 0.1}),
        "vae": (
            "AutoencoderKLLTXVideo",
            {**LTX_VAE, "down_block_types": ("LTXVideoDownBlock3D",) * 2, "timestep_conditioning": True},
        ),
        "text_encoder": T5,
    },
    {
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "guidance_scale": 3.0,
        "pipeline_args": {"max_sequence_length": 8, "guidance_rescale": 0.7},
    },
    unguided={"guidance_scale": 1.0},
)

LLAMA = (
    "LlamaModel",
    {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "pad_token_id": 0,
    },
)
HUNYUAN_TRANSFORMER = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 1,
    "num_single_layers": 1,
    "num_refiner_layers": 1,
    "patch_size": 1,
    "patch_size_t": 1,
    "guidance_embeds": True,
    "text_embed_dim": 16,
    "pooled_projection_dim": 16,
    "rope_axes_dim": (2, 4, 2),
}
PIPELINES["hunyuan_video"] = Tiny(
    "HunyuanVideoPipeline",
    {
        "transformer": ("HunyuanVideoTransformer3DModel", HUNYUAN_TRANSFORMER),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 7.0}),
        "vae": (
            "AutoencoderKLHunyuanVideo",
            {
                "latent_channels": 4,
                "down_block_types": ("HunyuanVideoDownBlock3D",) * 4,
                "up_block_types": ("HunyuanVideoUpBlock3D",) * 4,
                "block_out_channels": (4, 4, 4, 4),
                "layers_per_block": 1,
                "norm_num_groups": 2,
                "mid_block_add_attention": True,
            },
        ),
        "text_encoder": LLAMA,
        "text_encoder_2": ("CLIPTextModel", {**CLIP, "max_position_embeddings": 77}),
    },
    {
        "height": 32,
        "width": 32,
        "num_frames": 5,
        "guidance_scale": 6.0,
        "negative_prompt": "blurry",
        "pipeline_args": {
            "max_sequence_length": 8,
            "true_cfg_scale": 3.0,
            "prompt_template": {"template": "{}", "crop_start": 0},
        },
    },
    tokenizers=("tokenizer", "tokenizer_2"),
)
PIPELINES["hunyuan_video"] = replace(
    PIPELINES["hunyuan_video"],
    unguided={"pipeline_args": {**PIPELINES["hunyuan_video"].sampling["pipeline_args"], "true_cfg_scale": 1.0}},
)
PIPELINES["hunyuan_video_15"] = Tiny(
    "HunyuanVideo15Pipeline",
    {
        "transformer": (
            "HunyuanVideo15Transformer3DModel",
            {
                "in_channels": 9,
                "out_channels": 4,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "num_layers": 2,
                "num_refiner_layers": 1,
                "text_embed_dim": 16,
                "text_embed_2_dim": 32,
                "image_embed_dim": 16,
                "rope_axes_dim": (2, 4, 2),
                "target_size": 32,
                "task_type": "t2v",
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 7.0}),
        "vae": (
            "AutoencoderKLHunyuanVideo15",
            {"latent_channels": 4, "block_out_channels": (8, 8, 8, 8, 8), "layers_per_block": 1},
        ),
        "text_encoder": (
            "Qwen2_5_VLTextModel",
            {
                "vocab_size": len(VOCABULARY),
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
            },
        ),
        "text_encoder_2": T5,
        "guider": ("ClassifierFreeGuidance", {"guidance_scale": 3.0}),
    },
    {"height": 32, "width": 32, "num_frames": 5},
    tokenizers=("tokenizer", "tokenizer_2"),
    attributes={
        "system_message": "",
        "prompt_template_encode_start_idx": 0,
        "tokenizer_max_length": 8,
        "tokenizer_2_max_length": 4,
        "vision_num_semantic_tokens": 4,
    },
)
