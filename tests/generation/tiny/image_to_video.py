"""Tiny pipelines that make videos from images or videos, as data."""

from __future__ import annotations

from dataclasses import replace

from tiny import videos
from tiny.components import FLOW, T5, VOCABULARY
from tiny.factory import Tiny

PICTURE = {"image": (32, 32)}
PIPELINES: dict[str, Tiny] = {
    "ltx_image": replace(
        videos.PIPELINES["ltx"],
        pipeline="LTXImageToVideoPipeline",
        conditions=PICTURE,
    ),
}

HUNYUAN = videos.PIPELINES["hunyuan_video"]
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
IMAGE_SIZE = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
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
            videos.HUNYUAN_TRANSFORMER | {"in_channels": 9, "image_condition_type": "latent_concat"},
        ),
        "text_encoder": (
            "LlavaForConditionalGeneration",
            {
                "text_config": {**videos.LLAMA[1], "model_type": "llama"},
                "vision_config": {**VISION, "model_type": "clip_vision_model"},
                "image_token_index": VOCABULARY["the"],
                "pad_token_id": 0,
            },
        ),
        "image_processor": ("CLIPImageProcessor", IMAGE_SIZE),
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
            videos.HUNYUAN_TRANSFORMER | {"image_condition_type": "token_replace"},
        ),
    },
    slow=True,
)
PIPELINES["hunyuan_skyreels_image"] = replace(
    HUNYUAN,
    pipeline="HunyuanSkyreelsImageToVideoPipeline",
    components=HUNYUAN.components
    | {"transformer": ("HunyuanVideoTransformer3DModel", videos.HUNYUAN_TRANSFORMER | {"in_channels": 8})},
    conditions=PICTURE,
)
PIPELINES["hunyuan_framepack"] = replace(
    HUNYUAN,
    pipeline="HunyuanVideoFramepackPipeline",
    components=HUNYUAN.components
    | {
        "transformer": (
            "HunyuanVideoFramepackTransformer3DModel",
            videos.HUNYUAN_TRANSFORMER
            | {"patch_size": 2, "has_image_proj": True, "image_proj_dim": 16, "has_clean_x_embedder": True},
        ),
        "image_encoder": ("SiglipVisionModel", VISION),
        "feature_extractor": ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}}),
    },
    sampling=HUNYUAN.sampling
    | {
        "height": 32,
        "width": 32,
        "pipeline_args": {**videos.HUNYUAN_PROMPT, "true_cfg_scale": 3.0, "latent_window_size": 3},
    },
    unguided={"pipeline_args": {**videos.HUNYUAN_PROMPT, "latent_window_size": 3}},
    conditions={**PICTURE, "last_image": (32, 32)},
)
PIPELINES["hunyuan_video_15_image"] = replace(
    videos.PIPELINES["hunyuan_video_15"],
    pipeline="HunyuanVideo15ImageToVideoPipeline",
    components=videos.PIPELINES["hunyuan_video_15"].components
    | {
        "transformer": (
            "HunyuanVideo15Transformer3DModel",
            videos.PIPELINES["hunyuan_video_15"].components["transformer"][1]
            | {"task_type": "i2v", "use_meanflow": True},
        ),
        "image_encoder": ("SiglipVisionModel", VISION),
        "feature_extractor": ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}}),
    },
    sampling={"num_frames": 5},
    conditions=PICTURE,
)

COGVIDEOX = videos.PIPELINES["cogvideox"]
PIPELINES["cogvideox_image"] = replace(
    COGVIDEOX,
    pipeline="CogVideoXImageToVideoPipeline",
    components=COGVIDEOX.components
    | {"transformer": ("CogVideoXTransformer3DModel", {**videos.COGVIDEOX_TRANSFORMER, "in_channels": 8})},
    conditions=PICTURE,
)
PIPELINES["cogvideox_15_image"] = replace(
    PIPELINES["cogvideox_image"],
    components=COGVIDEOX.components
    | {
        "transformer": (
            "CogVideoXTransformer3DModel",
            {
                **videos.PIPELINES["cogvideox_15"].components["transformer"][1],
                "in_channels": 8,
                "ofs_embed_dim": 8,
            },
        )
    },
    slow=True,
)
PIPELINES["cogvideox_video"] = replace(
    COGVIDEOX,
    pipeline="CogVideoXVideoToVideoPipeline",
    sampling={name: value for name, value in COGVIDEOX.sampling.items() if name != "num_frames"},
    conditions={"video": (16, 16, 5)},
)
PIPELINES["cogvideox_control"] = replace(
    PIPELINES["cogvideox_image"],
    pipeline="CogVideoXFunControlPipeline",
    sampling=PIPELINES["cogvideox_video"].sampling,
    conditions={"control_video": (16, 16, 5)},
)

WAN = videos.PIPELINES["wan"]
WAN_TEXT = {"pipeline_args": {"max_sequence_length": 512}}  # whatever precedes the last 512 tokens is the picture
WAN_IMAGE = {**videos.WAN_TRANSFORMER, "in_channels": 36}
CLIP_VISION = {"image_encoder": ("CLIPVisionModel", VISION), "image_processor": ("CLIPImageProcessor", IMAGE_SIZE)}
PIPELINES["wan_image"] = replace(
    WAN,
    pipeline="WanImageToVideoPipeline",
    components=WAN.components
    | CLIP_VISION
    | {"transformer": ("WanTransformer3DModel", {**WAN_IMAGE, "image_dim": 16, "added_kv_proj_dim": 24})},
    sampling=WAN.sampling | WAN_TEXT,
    conditions={**PICTURE, "last_image": (16, 16)},
)
PIPELINES["wan22_image"] = replace(
    PIPELINES["wan_image"],
    components=WAN.components
    | {"transformer": ("WanTransformer3DModel", WAN_IMAGE), "transformer_2": ("WanTransformer3DModel", WAN_IMAGE)},
    sampling=WAN.sampling,
    conditions=PICTURE,
    settings={"boundary_ratio": 0.8},
    empty=("image_encoder", "image_processor"),
)
PIPELINES["wan22_small_image"] = replace(
    videos.PIPELINES["wan22_small"],
    pipeline="WanImageToVideoPipeline",
    conditions=PICTURE,
    empty=("image_encoder", "image_processor", "transformer_2"),
    slow=True,
)
WAN_VIDEO_SAMPLING = {name: value for name, value in WAN.sampling.items() if name != "num_frames"}
PIPELINES["wan_video"] = replace(
    WAN,
    pipeline="WanVideoToVideoPipeline",
    sampling=WAN_VIDEO_SAMPLING,
    conditions={"video": (16, 16, 5)},
    empty=(),
)
PIPELINES["lucy_edit"] = replace(
    videos.PIPELINES["wan22_small"],
    pipeline="LucyEditPipeline",
    components=videos.PIPELINES["wan22_small"].components
    | {"transformer": ("WanTransformer3DModel", {**videos.WAN_TRANSFORMER, "in_channels": 32})},
    conditions={"video": (32, 32, 5)},
)
PIPELINES["wan_animate"] = replace(
    PIPELINES["wan_image"],
    pipeline="WanAnimatePipeline",
    components=PIPELINES["wan_image"].components
    | {
        "transformer": (
            "WanAnimateTransformer3DModel",
            {
                **WAN_IMAGE,
                "image_dim": 16,
                "added_kv_proj_dim": 24,
                "motion_encoder_channel_sizes": {"4": 16, "8": 16, "16": 16},
                "motion_encoder_size": 16,
                "motion_style_dim": 8,
                "motion_dim": 4,
                "motion_encoder_dim": 16,
                "face_encoder_hidden_dim": 16,
                "face_encoder_num_heads": 2,
                "inject_face_latents_blocks": 2,
            },
        )
    },
    sampling=WAN_VIDEO_SAMPLING | {"pipeline_args": {"max_sequence_length": 512, "segment_frame_length": 5}},
    conditions={**PICTURE, "pose_video": (16, 16, 5), "face_video": (16, 16, 5)},
    empty=(),
)

PIPELINES["ltx2_image"] = replace(videos.PIPELINES["ltx2"], pipeline="LTX2ImageToVideoPipeline", conditions=PICTURE)
PIPELINES["skyreels_v2_image"] = replace(
    PIPELINES["wan_image"],
    pipeline="SkyReelsV2ImageToVideoPipeline",
    components=PIPELINES["wan_image"].components
    | {
        "transformer": (
            "SkyReelsV2Transformer3DModel",
            {**WAN_IMAGE, "image_dim": 16, "added_kv_proj_dim": 24},
        )
    },
    empty=(),
)
PIPELINES["skyreels_v2_forcing_image"] = replace(
    videos.PIPELINES["skyreels_v2_forcing"],
    pipeline="SkyReelsV2DiffusionForcingImageToVideoPipeline",
    conditions=PICTURE,
)
PIPELINES["skyreels_v2_forcing_video"] = replace(
    videos.PIPELINES["skyreels_v2_forcing"],
    pipeline="SkyReelsV2DiffusionForcingVideoToVideoPipeline",
    sampling=WAN.sampling
    | {
        "num_frames": 9,
        "pipeline_args": {"max_sequence_length": 8, "overlap_history": 5, "base_num_frames": 9},
    },
    conditions={"video": (16, 16, 5)},
)
PIPELINES["kandinsky5_video_image"] = replace(
    videos.PIPELINES["kandinsky5_video"],
    pipeline="Kandinsky5I2VPipeline",
    components=videos.PIPELINES["kandinsky5_video"].components
    | {
        "transformer": (
            "Kandinsky5Transformer3DModel",
            {**videos.PIPELINES["kandinsky5_video"].components["transformer"][1], "visual_cond": True},
        )
    },
    sampling=videos.PIPELINES["kandinsky5_video"].sampling | {"num_frames": 17},
    conditions=PICTURE,
)
PIPELINES["sana_video_image"] = replace(
    videos.PIPELINES["sana_video"],
    pipeline="SanaImageToVideoPipeline",
    components=videos.PIPELINES["sana_video"].components | {"scheduler": FLOW},
    conditions=PICTURE,
)
PIPELINES["chrono_edit"] = replace(
    PIPELINES["wan_image"],
    pipeline="ChronoEditPipeline",
    components=PIPELINES["wan_image"].components
    | {
        "transformer": (
            "ChronoEditTransformer3DModel",
            {**WAN_IMAGE, "image_dim": 16, "added_kv_proj_dim": 24, "rope_temporal_skip_len": 2},
        )
    },
    conditions=PICTURE,
    empty=(),
)

PIPELINES["cosmos2_video_image"] = replace(
    videos.PIPELINES["cosmos25"],
    pipeline="Cosmos2VideoToWorldPipeline",
    components=videos.PIPELINES["cosmos25"].components
    | {
        "transformer": ("CosmosTransformer3DModel", videos.COSMOS_TRANSFORMER),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"use_karras_sigmas": True}),
        "text_encoder": T5,
    },
    sampling=videos.SMALL_PICTURES
    | videos.SHORT_PROMPT
    | {"negative_prompt": "blurry", "transition": {"name": "ddim", "noise_level": 1.0}},
    conditions=PICTURE,
)
PIPELINES["cosmos25_video_image"] = replace(videos.PIPELINES["cosmos25"], conditions=PICTURE)
PIPELINES["cosmos25_video_video"] = replace(
    videos.PIPELINES["cosmos25"],
    sampling=videos.PIPELINES["cosmos25"].sampling
    | {"pipeline_args": {"max_sequence_length": 32, "num_latent_conditional_frames": 1}},
    conditions={"video": (16, 16, 5)},
    slow=True,
)
PIPELINES["kandinsky6_image"] = replace(videos.PIPELINES["kandinsky6"], conditions=PICTURE, slow=True)
