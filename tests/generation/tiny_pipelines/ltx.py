"""Tiny video pipelines as data: LTX-Video, and LTX-2 with its sound."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import T5, VISION, VOCABULARY
from tests.generation.tiny_pipelines.factory import Tiny

PICTURE = {"image": (32, 32)}
PIPELINES: dict[str, Tiny] = {}
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
                "vision_config": VISION,
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
PIPELINES["ltx2_reference"] = replace(PIPELINES["ltx2_condition"], pipeline="LTX2InContextPipeline")
PIPELINES["ltx_image"] = replace(
    PIPELINES["ltx"],
    pipeline="LTXImageToVideoPipeline",
    components=PIPELINES["ltx"].components | {"vae": ("AutoencoderKLLTXVideo", LTX_VAE)},
    conditions=PICTURE,
)
PIPELINES["ltx2_image"] = replace(PIPELINES["ltx2"], pipeline="LTX2ImageToVideoPipeline", conditions=PICTURE)
