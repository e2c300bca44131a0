"""Tiny video pipelines as data: Wan and what is built on it: SkyReels V2, Lucy, ChronoEdit, Helios."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import CAUSAL_VAE, CLIP_IMAGES, T5, VISION
from tests.generation.tiny_pipelines.factory import Tiny

PICTURE = {"image": (32, 32)}
PIPELINES: dict[str, Tiny] = {}
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
PIPELINES["wan"] = Tiny(
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
)
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
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "guidance_scale": 4.0,
        "pipeline_args": {"max_sequence_length": 8, "num_latent_frames_per_chunk": 2, "history_sizes": [4, 2, 1]},
    },
    unguided={"guidance_scale": 1.0},
)
WAN = PIPELINES["wan"]
WAN_TEXT = {"pipeline_args": {"max_sequence_length": 512}}  # all but the last 512 tokens are the image
WAN_IMAGE = {**WAN_TRANSFORMER, "in_channels": 36}
CLIP_TOWER = {"image_encoder": ("CLIPVisionModel", VISION), "image_processor": CLIP_IMAGES}
PIPELINES["wan_image"] = replace(
    WAN,
    pipeline="WanImageToVideoPipeline",
    components=WAN.components
    | CLIP_TOWER
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
    PIPELINES["wan22_small"],
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
    PIPELINES["wan22_small"],
    pipeline="LucyEditPipeline",
    components=PIPELINES["wan22_small"].components
    | {"transformer": ("WanTransformer3DModel", {**WAN_TRANSFORMER, "in_channels": 32})},
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
    PIPELINES["skyreels_v2_forcing"],
    pipeline="SkyReelsV2DiffusionForcingImageToVideoPipeline",
    conditions=PICTURE,
)
PIPELINES["skyreels_v2_forcing_video"] = replace(
    PIPELINES["skyreels_v2_forcing"],
    pipeline="SkyReelsV2DiffusionForcingVideoToVideoPipeline",
    sampling=WAN.sampling
    | {
        "num_frames": 9,
        "pipeline_args": {"max_sequence_length": 8, "overlap_history": 5, "base_num_frames": 9},
    },
    conditions={"video": (16, 16, 5)},
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
PIPELINES["wan_vace"] = replace(
    PIPELINES["wan"],
    pipeline="WanVACEPipeline",
    components=PIPELINES["wan"].components
    | {
        "transformer": (
            "WanVACETransformer3DModel",
            {**WAN_TRANSFORMER, "vace_layers": [0], "vace_in_channels": 96},
        )
    },
    conditions={"video": (16, 16, 5), "mask": (16, 16, 5), "reference_images": (16, 16)},
    rows=1,
)
