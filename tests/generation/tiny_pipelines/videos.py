"""Tiny video pipelines of other families, from text and from pictures."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines import hunyuan_video, wan
from tests.generation.tiny_pipelines.components import ALLOW_ALL, FLOW, LANGUAGE_MODEL, QWEN2_5_VL, T5, VISION
from tests.generation.tiny_pipelines.factory import Tiny

PICTURE = {"image": (32, 32)}
PIPELINES: dict[str, Tiny] = {}
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
PIPELINES["kandinsky5_video"] = Tiny(
    "Kandinsky5T2VPipeline",
    {
        "transformer": (
            "Kandinsky5Transformer3DModel",
            {
                "in_visual_dim": 4,
                "in_text_dim": 16,
                "in_text_dim2": 16,
                "time_dim": 32,
                "out_visual_dim": 4,
                "model_dim": 32,
                "ff_dim": 16,
                "num_text_blocks": 1,
                "num_visual_blocks": 1,
                "axes_dims": (2, 2, 4),
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 5.0}),
        "vae": hunyuan_video.PIPELINES["hunyuan_video"].components["vae"],
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "text_encoder_2": hunyuan_video.PIPELINES["hunyuan_video"].components["text_encoder_2"],
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
        "vae": wan.PIPELINES["wan"].components["vae"],
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
MOTIF_TRANSFORMER = {
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
}
PIPELINES["motif_video"] = Tiny(
    "MotifVideoPipeline",
    {
        "transformer": ("MotifVideoTransformer3DModel", MOTIF_TRANSFORMER),
        "scheduler": FLOW,
        "vae": wan.PIPELINES["wan"].components["vae"],
        "text_encoder": (
            "T5Gemma2Encoder",
            {
                "text_config": {**LANGUAGE_MODEL, "dropout_rate": 0.0},
                "vision_config": VISION,
            },
        ),
        "guider": ("AdaptiveProjectedGuidance", {"adaptive_projected_guidance_momentum": -0.5}),
    },
    {**SMALL_PICTURES, **SHORT_PROMPT},
    unguided={"guidance_scale": 1.0},
    empty=("feature_extractor",),
)
PIPELINES["motif_image_to_video"] = replace(
    PIPELINES["motif_video"],
    pipeline="MotifVideoImage2VideoPipeline",
    components=PIPELINES["motif_video"].components
    | {
        "transformer": ("MotifVideoTransformer3DModel", {**MOTIF_TRANSFORMER, "image_embed_dim": 16}),
        "feature_extractor": ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}}),
    },
    conditions=PICTURE,
    empty=(),
    rows=1,
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
        "vae": wan.PIPELINES["wan"].components["vae"],
        "text_encoder": ("Qwen2_5_VLForConditionalGeneration", QWEN2_5_VL),
        "safety_checker": ALLOW_ALL,
    },
    {**SMALL_PICTURES, "negative_prompt": "blurry", "pipeline_args": {"max_sequence_length": 32}},
    unguided={"guidance_scale": 0.0},
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
PIPELINES["kandinsky5_video_image"] = replace(
    PIPELINES["kandinsky5_video"],
    pipeline="Kandinsky5I2VPipeline",
    components=PIPELINES["kandinsky5_video"].components
    | {
        "transformer": (
            "Kandinsky5Transformer3DModel",
            {**PIPELINES["kandinsky5_video"].components["transformer"][1], "visual_cond": True},
        )
    },
    sampling=PIPELINES["kandinsky5_video"].sampling | {"num_frames": 17},
    conditions=PICTURE,
)
PIPELINES["sana_video_image"] = replace(
    PIPELINES["sana_video"],
    pipeline="SanaImageToVideoPipeline",
    components=PIPELINES["sana_video"].components | {"scheduler": FLOW},
    conditions=PICTURE,
)
PIPELINES["cosmos2_video_image"] = replace(
    PIPELINES["cosmos25"],
    pipeline="Cosmos2VideoToWorldPipeline",
    components=PIPELINES["cosmos25"].components
    | {
        "transformer": ("CosmosTransformer3DModel", COSMOS_TRANSFORMER),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_karras_sigmas": True}),
        "text_encoder": T5,
    },
    sampling=SMALL_PICTURES
    | SHORT_PROMPT
    | {"negative_prompt": "blurry", "transition": {"name": "ddim", "noise_level": 1.0}},
    conditions=PICTURE,
)
PIPELINES["cosmos25_video_image"] = replace(PIPELINES["cosmos25"], conditions=PICTURE)
PIPELINES["cosmos25_video_video"] = replace(
    PIPELINES["cosmos25"],
    sampling=PIPELINES["cosmos25"].sampling
    | {"pipeline_args": {"max_sequence_length": 32, "num_latent_conditional_frames": 1}},
    conditions={"video": (16, 16, 5)},
    slow=True,
)
PIPELINES["kandinsky6_image"] = replace(PIPELINES["kandinsky6"], conditions=PICTURE, slow=True)
