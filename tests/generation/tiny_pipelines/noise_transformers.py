"""Tiny pipelines of transformers that predict noise, as data."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import KL_VAE, T5, VOCABULARY, Component
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.flow_images import PIPELINES as FLOW_IMAGES

UNGUIDED = {"guidance_scale": 1.0}
DDIM = {"name": "ddim", "noise_level": 1.0}
NATIVE = {"name": "native"}
EIGHTH_VAE: Component = (
    KL_VAE[0],
    KL_VAE[1]
    | {
        "block_out_channels": (8,) * 4,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    },
)
PIXART = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 2,
    "cross_attention_dim": 16,
    "caption_channels": 32,
    "sample_size": 8,
}

PIPELINES = {
    "pixart_alpha": Tiny(
        "PixArtAlphaPipeline",
        {
            "transformer": (
                "PixArtTransformer2DModel",
                PIXART
                | {
                    "num_attention_heads": 3,
                    "cross_attention_dim": 24,
                    "sample_size": 128,
                    "use_additional_conditions": True,
                },
            ),
            "scheduler": ("DPMSolverMultistepScheduler", {}),
            "vae": KL_VAE,
            "text_encoder": T5,
        },
        {
            "height": 16,
            "width": 16,
            "guidance_scale": 4.5,
            "negative_prompt": "blurry",
            "transition": DDIM,
            "pipeline_args": {"max_sequence_length": 8, "use_resolution_binning": False},
        },
        unguided=UNGUIDED,
    ),
    "hunyuan_dit": Tiny(
        "HunyuanDiTPipeline",
        {
            "transformer": (
                "HunyuanDiT2DModel",
                {
                    "num_attention_heads": 2,
                    "attention_head_dim": 8,
                    "in_channels": 4,
                    "patch_size": 2,
                    "sample_size": 8,
                    "hidden_size": 16,
                    "num_layers": 2,
                    "cross_attention_dim": 16,
                    "cross_attention_dim_t5": 32,
                    "pooled_projection_dim": 16,
                },
            ),
            "scheduler": (
                "DDPMScheduler",
                {
                    "beta_start": 0.00085,
                    "beta_end": 0.03,
                    "beta_schedule": "scaled_linear",
                    "prediction_type": "v_prediction",
                    "steps_offset": 1,
                    "clip_sample": False,
                },
            ),
            "vae": EIGHTH_VAE,
            "text_encoder": (
                "BertModel",
                {
                    "vocab_size": len(VOCABULARY),
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "max_position_embeddings": 77,
                },
            ),
            "text_encoder_2": T5,
        },
        {
            "height": 32,
            "width": 32,
            "guidance_scale": 5.0,
            "transition": NATIVE,
            "pipeline_args": {"use_resolution_binning": False, "guidance_rescale": 0.5},
        },
        unguided=UNGUIDED,
        tokenizers=("tokenizer", "tokenizer_2"),
        empty=("safety_checker", "feature_extractor"),
        settings={"requires_safety_checker": False},
    ),
    "cogview3": Tiny(
        "CogView3PlusPipeline",
        {
            "transformer": (
                "CogView3PlusTransformer2DModel",
                {
                    "in_channels": 4,
                    "out_channels": 4,
                    "num_layers": 2,
                    "attention_head_dim": 8,
                    "num_attention_heads": 2,
                    "text_embed_dim": 32,
                    "time_embed_dim": 8,
                    "condition_dim": 8,
                    "pos_embed_max_size": 8,
                    "sample_size": 8,
                },
            ),
            "scheduler": (
                "CogVideoXDDIMScheduler",
                {
                    "prediction_type": "v_prediction",
                    "rescale_betas_zero_snr": True,
                    "snr_shift_scale": 4.0,
                    "clip_sample": False,
                },
            ),
            "vae": KL_VAE,
            "text_encoder": T5,
        },
        {
            "height": 16,
            "width": 16,
            "guidance_scale": 5.0,
            "transition": DDIM,
            "pipeline_args": {"max_sequence_length": 8},
        },
        unguided=UNGUIDED,
    ),
    "sana_sprint": replace(
        FLOW_IMAGES["sana"],
        pipeline="SanaSprintPipeline",
        components=FLOW_IMAGES["sana"].components
        | {
            "transformer": (
                "SanaTransformer2DModel",
                FLOW_IMAGES["sana"].components["transformer"][1]
                | {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads", "timestep_scale": 1000.0},
            ),
            "scheduler": ("SCMScheduler", {}),
        },
        sampling=FLOW_IMAGES["sana"].sampling
        | {
            "transition": NATIVE,
            "pipeline_args": FLOW_IMAGES["sana"].sampling["pipeline_args"] | {"intermediate_timesteps": None},
        },
        unguided=None,
    ),
}
PIPELINES["pixart_sigma"] = replace(
    PIPELINES["pixart_alpha"],
    pipeline="PixArtSigmaPipeline",
    components=PIPELINES["pixart_alpha"].components | {"transformer": ("PixArtTransformer2DModel", PIXART)},
)
PIPELINES |= {
    "hunyuan_dit_pag": replace(
        PIPELINES["hunyuan_dit"],
        pipeline="HunyuanDiTPAGPipeline",
        unguided={"guidance_scale": 1.0, "pipeline_args": {"use_resolution_binning": False, "pag_scale": 0.0}},
        settings={"requires_safety_checker": False, "pag_applied_layers": "blocks.1"},
    ),
    "pixart_sigma_pag": replace(
        PIPELINES["pixart_sigma"],
        pipeline="PixArtSigmaPAGPipeline",
        unguided={
            "guidance_scale": 1.0,
            "pipeline_args": PIPELINES["pixart_alpha"].sampling["pipeline_args"] | {"pag_scale": 0.0},
        },
        settings={"pag_applied_layers": "blocks.1"},
    ),
    "sana_sprint_img2img": replace(
        PIPELINES["sana_sprint"],
        pipeline="SanaSprintImg2ImgPipeline",
        sampling=PIPELINES["sana_sprint"].sampling
        | {"pipeline_args": PIPELINES["sana_sprint"].sampling["pipeline_args"] | {"strength": 0.75}},
        conditions={"image": (32, 32)},
    ),
    "hunyuan_dit_controlnet": replace(
        PIPELINES["hunyuan_dit"],
        pipeline="HunyuanDiTControlNetPipeline",
        components=PIPELINES["hunyuan_dit"].components
        | {
            "transformer": (  # its control comes in at skips, which two layers do not have
                PIPELINES["hunyuan_dit"].components["transformer"][0],
                PIPELINES["hunyuan_dit"].components["transformer"][1] | {"num_layers": 4},
            ),
            "controlnet": (
                "HunyuanDiT2DControlNetModel",
                {
                    name: value
                    for name, value in PIPELINES["hunyuan_dit"].components["transformer"][1].items()
                    if name != "num_layers"
                }
                | {"transformer_num_layers": 4},
            ),
        },
        conditions={"control_image": (32, 32)},
    ),
}
