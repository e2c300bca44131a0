"""Tiny video pipelines as data: CogVideoX, from text, pictures and videos."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import T5
from tests.generation.tiny_pipelines.factory import Tiny

PICTURE = {"image": (32, 32)}
PIPELINES: dict[str, Tiny] = {}
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
COGVIDEOX = PIPELINES["cogvideox"]
PIPELINES["cogvideox_image"] = replace(
    COGVIDEOX,
    pipeline="CogVideoXImageToVideoPipeline",
    components=COGVIDEOX.components
    | {"transformer": ("CogVideoXTransformer3DModel", {**COGVIDEOX_TRANSFORMER, "in_channels": 8})},
    conditions=PICTURE,
)
PIPELINES["cogvideox_15_image"] = replace(
    PIPELINES["cogvideox_image"],
    components=COGVIDEOX.components
    | {
        "transformer": (
            "CogVideoXTransformer3DModel",
            {
                **PIPELINES["cogvideox_15"].components["transformer"][1],
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
    sampling={name: value for name, value in COGVIDEOX.sampling.items() if name != "num_frames"}
    | {"pipeline_args": {"max_sequence_length": 8}},
    conditions={"video": (16, 16, 5)},
)
PIPELINES["cogvideox_control"] = replace(
    PIPELINES["cogvideox_image"],
    pipeline="CogVideoXFunControlPipeline",
    sampling=PIPELINES["cogvideox_video"].sampling,
    conditions={"control_video": (16, 16, 5)},
)
