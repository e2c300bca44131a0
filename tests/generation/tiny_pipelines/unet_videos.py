"""Tiny video pipelines with a UNet, as data."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import Component
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.sdxl import SDXL
from tests.generation.tiny_pipelines.unets import (
    BETAS,
    CLIP_PICTURES,
    CLIP_VISION,
    CONTROLNET,
    IMAGE,
    NO_PAG,
    SD15,
    STRENGTH,
)

MOTION = {
    "block_out_channels": (8, 16),
    "motion_layers_per_block": 1,
    "motion_num_attention_heads": 2,
    "motion_norm_num_groups": 4,
}
ANIMATEDIFF = replace(
    SD15,
    pipeline="AnimateDiffPipeline",
    components=SD15.components
    | {
        "motion_adapter": ("MotionAdapter", MOTION),
        "scheduler": ("DDIMScheduler", BETAS | {"beta_schedule": "linear", "clip_sample": False}),
    },
    sampling=SD15.sampling | {"num_frames": 2},
    empty=("feature_extractor", "image_encoder"),
    settings={},
)
V_EULER: Component = (
    "EulerDiscreteScheduler",
    BETAS
    | {
        "prediction_type": "v_prediction",
        "timestep_type": "continuous",
        "use_karras_sigmas": True,
        "sigma_min": 0.002,
        "sigma_max": 700.0,
    },
)
VIDEO = {"video": (16, 16, 2)}

PIPELINES = {
    "animatediff": ANIMATEDIFF,
    "animatediff_pag": replace(ANIMATEDIFF, pipeline="AnimateDiffPAGPipeline", unguided=NO_PAG),
    "animatediff_video": replace(
        ANIMATEDIFF,
        pipeline="AnimateDiffVideoToVideoPipeline",
        sampling=SD15.sampling | STRENGTH,
        conditions=VIDEO,
    ),
    "animatediff_video_controlnet": replace(
        ANIMATEDIFF,
        pipeline="AnimateDiffVideoToVideoControlNetPipeline",
        components=ANIMATEDIFF.components | {"controlnet": ("ControlNetModel", CONTROLNET)},
        sampling=SD15.sampling | STRENGTH,
        conditions=VIDEO | {"conditioning_frames": (16, 16, 2)},
        slow=True,
    ),
    "animatediff_sdxl": replace(
        SDXL,
        pipeline="AnimateDiffSDXLPipeline",
        components=SDXL.components | {"motion_adapter": ("MotionAdapter", MOTION | {"use_motion_mid_block": False})},
        sampling=SDXL.sampling | {"num_frames": 2},
        settings={},
    ),
    "pia": replace(
        ANIMATEDIFF,
        pipeline="PIAPipeline",
        components=ANIMATEDIFF.components | {"motion_adapter": ("MotionAdapter", MOTION | {"conv_in_channels": 9})},
        conditions=IMAGE,
    ),
    "svd": Tiny(
        "StableVideoDiffusionPipeline",
        {
            "unet": (
                "UNetSpatioTemporalConditionModel",
                {
                    "block_out_channels": (32, 32),
                    "layers_per_block": 1,
                    "sample_size": 8,
                    "in_channels": 8,
                    "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
                    "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
                    "cross_attention_dim": 16,
                    "num_attention_heads": (2, 2),
                    "projection_class_embeddings_input_dim": 24,
                    "addition_time_embed_dim": 8,
                },
            ),
            "scheduler": V_EULER,
            "vae": (
                "AutoencoderKLTemporalDecoder",
                {"block_out_channels": (32, 32), "down_block_types": ("DownEncoderBlock2D",) * 2, "sample_size": 16},
            ),
            "image_encoder": (CLIP_VISION[0], CLIP_VISION[1] | {"image_size": 224, "patch_size": 112}),
            "feature_extractor": CLIP_PICTURES,
        },
        {
            "height": 16,
            "width": 16,
            "num_frames": 2,
            "transition": {"name": "ddim", "noise_level": 1.0},
            "pipeline_args": {"min_guidance_scale": 1.5},
        },
        unguided={"pipeline_args": {"max_guidance_scale": 1.0}},
        reads_prompt=False,
        conditions=IMAGE,
        tokenizers=(),
        heavy=True,
    ),
}
