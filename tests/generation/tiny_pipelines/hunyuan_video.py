"""Tiny video pipelines as data: HunyuanVideo 1.0 and 1.5."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import CLIP, CLIP_IMAGES, T5, VISION, VOCABULARY
from tests.generation.tiny_pipelines.factory import Tiny

PICTURE = {"image": (32, 32)}
PIPELINES: dict[str, Tiny] = {}
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
HUNYUAN = PIPELINES["hunyuan_video"]
LLAVA_PROMPT = {  # "the" stands for the picture's four tokens; unknown words, as "x", for the end of a header
    "max_sequence_length": 10,
    "prompt_template": {
        "template": "the x x {} of of of x",
        "crop_start": 3,
        "image_emb_len": 4,
        "image_emb_start": 0,
        "image_emb_end": 4,
    },
}
PIPELINES["hunyuan_video_image"] = replace(
    HUNYUAN,
    pipeline="HunyuanVideoImageToVideoPipeline",
    components=HUNYUAN.components
    | {
        "transformer": (
            "HunyuanVideoTransformer3DModel",
            HUNYUAN_TRANSFORMER | {"in_channels": 9, "image_condition_type": "latent_concat"},
        ),
        "text_encoder": (
            "LlavaForConditionalGeneration",
            {
                "text_config": {**LLAMA[1], "model_type": "llama"},
                "vision_config": {**VISION, "model_type": "clip_vision_model"},
                "image_token_index": VOCABULARY["the"],
                "pad_token_id": 0,
            },
        ),
        "image_processor": CLIP_IMAGES,
    },
    sampling=HUNYUAN.sampling | {"pipeline_args": LLAVA_PROMPT},  # true guidance of several rows fails in its own code
    unguided=None,
    conditions=PICTURE,
)
PIPELINES["hunyuan_video_image_token"] = replace(
    PIPELINES["hunyuan_video_image"],
    components=PIPELINES["hunyuan_video_image"].components
    | {
        "transformer": (
            "HunyuanVideoTransformer3DModel",
            HUNYUAN_TRANSFORMER | {"image_condition_type": "token_replace"},
        ),
    },
    slow=True,
)
PIPELINES["hunyuan_skyreels_image"] = replace(
    HUNYUAN,
    pipeline="HunyuanSkyreelsImageToVideoPipeline",
    components=HUNYUAN.components
    | {"transformer": ("HunyuanVideoTransformer3DModel", HUNYUAN_TRANSFORMER | {"in_channels": 8})},
    conditions=PICTURE,
)
PIPELINES["hunyuan_framepack"] = replace(
    HUNYUAN,
    pipeline="HunyuanVideoFramepackPipeline",
    components=HUNYUAN.components
    | {
        "transformer": (
            "HunyuanVideoFramepackTransformer3DModel",
            HUNYUAN_TRANSFORMER
            | {"patch_size": 2, "has_image_proj": True, "image_proj_dim": 16, "has_clean_x_embedder": True},
        ),
        "image_encoder": ("SiglipVisionModel", VISION),
        "feature_extractor": ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}}),
    },
    sampling=HUNYUAN.sampling
    | {
        "height": 32,
        "width": 32,
        "pipeline_args": {**HUNYUAN_PROMPT, "true_cfg_scale": 3.0, "latent_window_size": 3},
    },
    unguided={"pipeline_args": {**HUNYUAN_PROMPT, "latent_window_size": 3}},
    conditions={**PICTURE, "last_image": (32, 32)},
)
PIPELINES["hunyuan_video_15_image"] = replace(
    PIPELINES["hunyuan_video_15"],
    pipeline="HunyuanVideo15ImageToVideoPipeline",
    components=PIPELINES["hunyuan_video_15"].components
    | {
        "transformer": (
            "HunyuanVideo15Transformer3DModel",
            PIPELINES["hunyuan_video_15"].components["transformer"][1] | {"task_type": "i2v", "use_meanflow": True},
        ),
        "image_encoder": ("SiglipVisionModel", VISION),
        "feature_extractor": ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}}),
    },
    sampling={"num_frames": 5},
    conditions=PICTURE,
)
