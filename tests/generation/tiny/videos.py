"""Tiny video pipelines, as data."""

from __future__ import annotations

from dataclasses import replace

from tiny.components import ALLOW_ALL, CAUSAL_VAE, CLIP, FLOW, LANGUAGE_MODEL, QWEN2_5_VL, T5, VOCABULARY
from tiny.factory import Tiny

WAN_TRANSFORMER = {
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
}
PIPELINES = {
    "wan": Tiny(
        "WanPipeline",
        {
            "transformer": ("WanTransformer3DModel", WAN_TRANSFORMER),
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
PIPELINES["wan22_small"] = replace(  # the 5B: one noise level a token, a VAE that folds pixels
    PIPELINES["wan"],
    components=PIPELINES["wan"].components
    | {
        "vae": (
            "AutoencoderKLWan",
            {
                **CAUSAL_VAE,
                "decoder_base_dim": 4,
                "temperal_downsample": [False, True, True],
                "is_residual": True,
                "patch_size": 2,
                "in_channels": 12,
                "out_channels": 12,
                "scale_factor_spatial": 16,
            },
        )
    },
    sampling=PIPELINES["wan"].sampling | {"height": 32, "width": 32},
    settings={"expand_timesteps": True},
)

LTX_VAE = {
    "down_block_types": ("LTXVideoDownBlock3D",) * 2,
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
            {**LTX_VAE, "timestep_conditioning": True},
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
HUNYUAN_PROMPT = {"max_sequence_length": 8, "prompt_template": {"template": "{}", "crop_start": 0}}
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
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "guidance_scale": 6.0,
        "negative_prompt": "blurry",
        "pipeline_args": {**HUNYUAN_PROMPT, "true_cfg_scale": 3.0},
    },
    unguided={"pipeline_args": HUNYUAN_PROMPT},
    tokenizers=("tokenizer", "tokenizer_2"),
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
                "num_layers": 1,
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
        "guider": ("ClassifierFreeGuidance", {}),
    },
    {"height": 32, "width": 32, "num_frames": 5, "guidance_scale": 3.0},
    unguided={"guidance_scale": 1.0},
    tokenizers=("tokenizer", "tokenizer_2"),
    attributes={
        "system_message": "",
        "prompt_template_encode_start_idx": 0,
        "tokenizer_max_length": 8,
        "tokenizer_2_max_length": 4,
        "vision_num_semantic_tokens": 4,
    },
)

COGVIDEOX_SCHEDULER = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "snr_shift_scale": 1.0,
    "timestep_spacing": "trailing",
}
COGVIDEOX_TRANSFORMER = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 8,
    "text_embed_dim": 32,
    "num_layers": 1,
    "sample_width": 2,
    "sample_height": 2,
    "sample_frames": 5,
    "max_text_seq_length": 8,
    "use_rotary_positional_embeddings": True,
}
PIPELINES["cogvideox"] = Tiny(
    "CogVideoXPipeline",
    {
        "transformer": ("CogVideoXTransformer3DModel", COGVIDEOX_TRANSFORMER),
        "scheduler": ("CogVideoXDDIMScheduler", COGVIDEOX_SCHEDULER),
        "vae": (
            "AutoencoderKLCogVideoX",
            {
                "down_block_types": ("CogVideoXDownBlock3D",) * 4,
                "up_block_types": ("CogVideoXUpBlock3D",) * 4,
                "block_out_channels": (4, 4, 4, 4),
                "latent_channels": 4,
                "layers_per_block": 1,
                "norm_num_groups": 2,
            },
        ),
        "text_encoder": T5,
    },
    {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "guidance_scale": 6.0,
        "transition": {"name": "ddim", "noise_level": 1.0},
        "pipeline_args": {"max_sequence_length": 8, "use_dynamic_cfg": True},
    },
    unguided={"guidance_scale": 1.0, "pipeline_args": {"max_sequence_length": 8}},
)
PIPELINES["cogvideox_15"] = replace(
    PIPELINES["cogvideox"],
    components=PIPELINES["cogvideox"].components
    | {
        "transformer": (
            "CogVideoXTransformer3DModel",
            {**COGVIDEOX_TRANSFORMER, "patch_size_t": 2, "sample_frames": 5, "patch_bias": False},
        )
    },
    slow=True,
)

LTX2_TRANSFORMER = {
    "in_channels": 8,
    "out_channels": 8,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "cross_attention_dim": 16,
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_in_channels": 4,
    "audio_out_channels": 4,
    "audio_num_attention_heads": 2,
    "audio_attention_head_dim": 4,
    "audio_cross_attention_dim": 8,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "num_layers": 1,
    "caption_channels": 16,
    "rope_double_precision": False,
    "rope_type": "split",
    "perturbed_attn": True,
}
CONNECTOR = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "num_learnable_registers": None}
LTX2_UNGUIDED = {
    "max_sequence_length": 8,
    "stg_scale": 0.0,
    "modality_scale": 1.0,
    "guidance_rescale": 0.0,
    "audio_guidance_scale": 1.0,
    "audio_stg_scale": 0.0,
    "audio_modality_scale": 1.0,
    "audio_guidance_rescale": 0.0,
}
PIPELINES["ltx2"] = Tiny(
    "LTX2Pipeline",
    {
        "transformer": ("LTX2VideoTransformer3DModel", LTX2_TRANSFORMER),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True, "shift_terminal": 0.1}),
        "vae": (
            "AutoencoderKLLTX2Video",
            {
                **LTX_VAE,
                "down_block_types": ("LTX2VideoDownBlock3D",) * 2,
                "downsample_type": ("spatial", "spatiotemporal"),
                "upsample_type": ("spatiotemporal", "spatial"),
            },
        ),
        "audio_vae": (
            "AutoencoderKLLTX2Audio",
            {
                "base_channels": 4,
                "ch_mult": (1,),
                "num_res_blocks": 1,
                "resolution": 32,
                "latent_channels": 2,
                "mel_bins": 8,
            },
        ),
        "text_encoder": (
            "Gemma3ForConditionalGeneration",
            {
                "text_config": {
                    "vocab_size": len(VOCABULARY),
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "num_key_value_heads": 1,
                    "head_dim": 8,
                },
                "vision_config": {
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "image_size": 16,
                    "patch_size": 8,
                },
            },
        ),
        "connectors": (
            "diffusers.pipelines.ltx2.LTX2TextConnectors",
            {
                "caption_channels": 16,
                "text_proj_in_factor": 3,
                **{
                    f"{kind}_connector_{name}": value
                    for kind in ("video", "audio")
                    for name, value in CONNECTOR.items()
                },
                "connector_rope_base_seq_len": 32,
                "rope_theta": 10000.0,
                "rope_double_precision": False,
                "causal_temporal_positioning": False,
                "rope_type": "split",
            },
        ),
        "vocoder": (
            "diffusers.pipelines.ltx2.LTX2Vocoder",
            {
                "in_channels": 16,
                "hidden_channels": 8,
                "upsample_kernel_sizes": [4, 4],
                "upsample_factors": [2, 2],
                "resnet_kernel_sizes": [3],
                "resnet_dilations": [[1]],
            },
        ),
    },
    {
        "height": 32,
        "width": 32,
        "num_frames": 5,
        "guidance_scale": 3.0,
        "pipeline_args": {"max_sequence_length": 8, "spatio_temporal_guidance_blocks": [0]},
    },
    unguided={"guidance_scale": 1.0, "pipeline_args": LTX2_UNGUIDED},
)

PIPELINES["ltx2_condition"] = replace(PIPELINES["ltx2"], pipeline="LTX2ConditionPipeline", empty=("audio_scheduler",))
SMALL_PICTURES = {"height": 16, "width": 16, "num_frames": 5, "guidance_scale": 4.0}
SHORT_PROMPT = {"pipeline_args": {"max_sequence_length": 8}}
PIPELINES["mochi"] = Tiny(
    "MochiPipeline",
    {
        "transformer": (
            "MochiTransformer3DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "num_layers": 2,
                "pooled_projection_dim": 16,
                "in_channels": 12,
                "text_embed_dim": 32,
                "time_embed_dim": 8,
                "max_sequence_length": 8,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"invert_sigmas": True}),
        "vae": (
            "AutoencoderKLMochi",
            {
                "encoder_block_out_channels": (32, 32, 32, 32),
                "decoder_block_out_channels": (32, 32, 32, 32),
                "layers_per_block": (1, 1, 1, 1, 1),
            },
        ),
        "text_encoder": T5,
    },
    {**SMALL_PICTURES, "num_frames": 7, **SHORT_PROMPT},
    unguided={"guidance_scale": 1.0},
)
PIPELINES["allegro"] = Tiny(
    "AllegroPipeline",
    {
        "transformer": (
            "AllegroTransformer3DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 24,
                "num_layers": 1,
                "cross_attention_dim": 48,
                "caption_channels": 32,
                "sample_height": 2,
                "sample_width": 2,
                "sample_frames": 5,
            },
        ),
        "scheduler": ("EulerAncestralDiscreteScheduler", {"timestep_spacing": "linspace"}),
        "vae": (
            "AutoencoderKLAllegro",
            {
                "block_out_channels": (4, 4, 4, 4),
                "layers_per_block": 1,
                "norm_num_groups": 2,
                "sample_size": 16,
            },
        ),
        "text_encoder": T5,
    },
    {
        **SMALL_PICTURES,
        "num_frames": 8,
        "transition": {"name": "native"},
        "pipeline_args": {"max_sequence_length": 8, "clean_caption": False},
    },
    unguided={"guidance_scale": 1.0},
)
PIPELINES["skyreels_v2"] = replace(
    PIPELINES["wan"],
    pipeline="SkyReelsV2Pipeline",
    components=PIPELINES["wan"].components | {"transformer": ("SkyReelsV2Transformer3DModel", WAN_TRANSFORMER)},
    empty=(),
)
PIPELINES["skyreels_v2_forcing"] = replace(
    PIPELINES["skyreels_v2"],
    pipeline="SkyReelsV2DiffusionForcingPipeline",
)
PIPELINES["kandinsky5_video"] = Tiny(
    "Kandinsky5T2VPipeline",
    {
        "transformer": (
            "Kandinsky5Transformer3DModel",
            {
                "in_visual_dim": 4,
                "in_text_dim": 16,
                "in_text_dim2": 16,
                "time_dim": 16,
                "out_visual_dim": 4,
                "model_dim": 16,
                "ff_dim": 16,
                "num_text_blocks": 1,
                "num_visual_blocks": 1,
                "axes_dims": (2, 2, 4),
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 5.0}),
        "vae": PIPELINES["hunyuan_video"].components["vae"],
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "text_encoder_2": PIPELINES["hunyuan_video"].components["text_encoder_2"],
    },
    {**SMALL_PICTURES, **SHORT_PROMPT},
    unguided={"guidance_scale": 1.0},
    tokenizers=("tokenizer", "tokenizer_2"),
    attributes={"prompt_template": "{:.5}", "prompt_template_encode_start_idx": 0},  # of equal length: no mask
)
PIPELINES["sana_video"] = Tiny(
    "SanaVideoPipeline",
    {
        "transformer": (
            "SanaVideoTransformer3DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 12,
                "num_layers": 2,
                "num_cross_attention_heads": 2,
                "cross_attention_head_dim": 12,
                "cross_attention_dim": 24,
                "caption_channels": 16,
                "sample_size": 4,
                "rope_max_seq_len": 32,
            },
        ),
        "scheduler": (
            "DPMSolverMultistepScheduler",
            {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 7.0},
        ),
        "vae": PIPELINES["wan"].components["vae"],
        "text_encoder": ("Gemma2Model", LANGUAGE_MODEL),
    },
    {
        "height": 32,
        "width": 32,
        "guidance_scale": 4.0,
        "pipeline_args": {
            "frames": 5,
            "max_sequence_length": 8,
            "complex_human_instruction": None,
            "use_resolution_binning": False,
        },
    },
    unguided={"guidance_scale": 1.0},
)
PIPELINES["easy_animate"] = Tiny(
    "EasyAnimatePipeline",
    {
        "transformer": (
            "EasyAnimateTransformer3DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 16,
                "in_channels": 4,
                "out_channels": 4,
                "patch_size": 2,
                "sample_width": 2,
                "sample_height": 2,
                "num_layers": 2,
                "mmdit_layers": 1,
                "time_embed_dim": 8,
                "text_embed_dim": 16,
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {}),
        "vae": (
            "AutoencoderKLMagvit",
            {
                "latent_channels": 4,
                "block_out_channels": [4, 4, 4, 4],
                "layers_per_block": 1,
                "norm_num_groups": 2,
            },
        ),
        "text_encoder": (
            "Qwen2VLForConditionalGeneration",
            {**QWEN2_5_VL, "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2}},
        ),
    },
    {**SMALL_PICTURES, "negative_prompt": "blurry", "pipeline_args": {"guidance_rescale": 0.7}},
    unguided={"guidance_scale": 1.0},
)
PIPELINES["motif_video"] = Tiny(
    "MotifVideoPipeline",
    {
        "transformer": (
            "MotifVideoTransformer3DModel",
            {
                "in_channels": 33,
                "out_channels": 16,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "num_layers": 1,
                "num_single_layers": 2,
                "num_decoder_layers": 1,
                "patch_size": 2,
                "text_embed_dim": 16,
                "rope_axes_dim": (2, 4, 2),
                "enable_text_cross_attention_dual": True,
                "enable_text_cross_attention_single": True,
            },
        ),
        "scheduler": FLOW,
        "vae": PIPELINES["wan"].components["vae"],
        "text_encoder": (
            "T5Gemma2Encoder",
            {
                "text_config": {**LANGUAGE_MODEL, "dropout_rate": 0.0},
                "vision_config": {
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "image_size": 16,
                    "patch_size": 8,
                },
            },
        ),
        "guider": ("AdaptiveProjectedGuidance", {"adaptive_projected_guidance_momentum": -0.5}),
    },
    {**SMALL_PICTURES, **SHORT_PROMPT},
    unguided={"guidance_scale": 1.0},
    empty=("feature_extractor",),
)

COSMOS_TRANSFORMER = {
    "in_channels": 17,
    "out_channels": 16,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 2,
    "mlp_ratio": 1.0,
    "text_embed_dim": 32,
    "adaln_lora_dim": 4,
    "max_size": (4, 32, 32),
    "extra_pos_embed_type": None,
}
PIPELINES["cosmos25"] = Tiny(
    "Cosmos2_5_PredictBasePipeline",
    {
        "transformer": (
            "CosmosTransformer3DModel",
            {
                **COSMOS_TRANSFORMER,
                "use_crossattn_projection": True,
                "crossattn_proj_in_channels": 32,
                "encoder_hidden_states_channels": 32,
            },
        ),
        "scheduler": (
            "UniPCMultistepScheduler",
            {
                "prediction_type": "flow_prediction",
                "use_flow_sigmas": True,
                "use_karras_sigmas": True,
                "sigma_max": 200.0,
                "sigma_min": 0.01,
            },
        ),
        "vae": PIPELINES["wan"].components["vae"],
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "safety_checker": ALLOW_ALL,
    },
    {**SMALL_PICTURES, "negative_prompt": "blurry", "pipeline_args": {"max_sequence_length": 32}},
    unguided={"guidance_scale": 0.0},
)
PIPELINES["ltx2_reference"] = replace(PIPELINES["ltx2_condition"], pipeline="LTX2InContextPipeline")
PIPELINES["ltx2_hdr"] = replace(
    PIPELINES["ltx2_condition"],
    pipeline="LTX2HDRPipeline",
    sampling={**PIPELINES["ltx2"].sampling, "pipeline_args": {"max_sequence_length": 8}},
    unguided={"guidance_scale": 1.0},
)
PIPELINES["helios"] = Tiny(
    "HeliosPipeline",
    {
        "transformer": (
            "HeliosTransformer3DModel",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 12,
                "text_dim": 32,
                "freq_dim": 32,
                "ffn_dim": 32,
                "num_layers": 1,
                "rope_dim": (4, 4, 4),
            },
        ),
        "scheduler": ("HeliosScheduler", {"stages": 1, "stage_range": [0, 1], "use_dynamic_shifting": True}),
        "vae": PIPELINES["wan"].components["vae"],
        "text_encoder": T5,
    },
    {
        **SMALL_PICTURES,
        "pipeline_args": {"max_sequence_length": 8, "num_latent_frames_per_chunk": 2, "history_sizes": [4, 2, 1]},
    },
    unguided={"guidance_scale": 1.0},
)
PIPELINES["kandinsky6"] = replace(
    PIPELINES["kandinsky5_video"],
    pipeline="Kandinsky6TI2VAPipeline",
    components=PIPELINES["kandinsky5_video"].components
    | {
        "transformer": (
            "Kandinsky6Transformer3DModel",
            {
                "in_visual_dim": 4,
                "out_visual_dim": 4,
                "in_text_dim": 16,
                "in_text_dim2": 16,
                "time_dim": 16,
                "model_dim": 16,
                "ff_dim": 16,
                "num_text_blocks": 1,
                "num_visual_blocks": 1,
                "axes_dims": (2, 2, 4),
                "in_audio_dim": 4,
                "out_audio_dim": 4,
                "visual_token_type_num_embeddings": 2,
            },
        ),
        "audio_vae": (
            "MMAudioVAE",
            {
                "mel_bins": 8,
                "latent_channels": 4,
                "hidden_channels": 16,
                "channel_multipliers": (1, 1),
                "layers_per_block": 1,
                "sample_rate": 8000,
            },
        ),
        "vocoder": (
            "MMAudioVocoder",
            {
                "num_mels": 8,
                "upsample_initial_channel": 8,
                "upsample_rates": (2,),
                "upsample_kernel_sizes": (4,),
                "resblock_kernel_sizes": (3,),
                "resblock_dilation_sizes": ((1,),),
            },
        ),
    },
    attributes={},
)
