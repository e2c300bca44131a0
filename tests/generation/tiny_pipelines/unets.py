"""Tiny pipelines of Stable Diffusion 1 and 2, as data."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import CLIP, KL_VAE, Component
from tests.generation.tiny_pipelines.factory import Tiny

UNET = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
    "norm_num_groups": 4,
}
CONTROLNET = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "in_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
    "norm_num_groups": 4,
    "conditioning_embedding_out_channels": (8, 16),
}
CONTROLNET_XS = {
    "block_out_channels": (4, 8),
    "base_block_out_channels": (8, 16),
    "conditioning_embedding_out_channels": (4, 8),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "sample_size": 8,
    "cross_attention_dim": 16,
    "num_attention_heads": 2,
    "max_norm_num_groups": 4,
    "use_linear_projection": False,
}
CLIP_VISION: Component = (
    "CLIPVisionModelWithProjection",
    {
        "hidden_size": 16,
        "intermediate_size": 16,
        "projection_dim": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    },
)
CLIP_PICTURES: Component = ("CLIPImageProcessor", {"size": 16, "crop_size": 16})
NOISING: Component = ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2"})
PRIOR: Component = (
    "PriorTransformer",
    {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "embedding_dim": 16, "num_embeddings": 16},
)
UNCLIP: Component = (
    "UnCLIPScheduler",
    {"variance_type": "fixed_small_log", "prediction_type": "sample", "clip_sample_range": 5.0},
)

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
DDIM: Component = ("DDIMScheduler", BETAS | {"clip_sample": False, "set_alpha_to_one": False})
V_DDIM: Component = (DDIM[0], DDIM[1] | {"prediction_type": "v_prediction"})

PICTURE = (16, 16)
IMAGE = {"image": PICTURE}
MASKED = {"image": PICTURE, "mask_image": PICTURE}
UNGUIDED = {"guidance_scale": 1.0}
STRENGTH = {"pipeline_args": {"strength": 0.75}}
NO_PAG = {"guidance_scale": 1.0, "pipeline_args": {"pag_scale": 0.0}}
STRONG_PAG = {"pipeline_args": {"pag_scale": 3.0, "strength": 0.75}}
STRONG_NO_PAG = {"guidance_scale": 1.0, "pipeline_args": {"pag_scale": 0.0, "strength": 0.75}}
SIZE = {"height": 16, "width": 16}
GUIDED = {"guidance_scale": 3.0, "transition": {"name": "ddim", "noise_level": 1.0}}  # where pictures give the size
SHORT_PRIOR = {"pipeline_args": {"prior_num_inference_steps": 2}}
NATIVE = {"transition": {"name": "native"}}

SD15 = Tiny(
    "StableDiffusionPipeline",
    {
        "unet": ("UNet2DConditionModel", UNET),
        "scheduler": DDIM,
        "vae": KL_VAE,
        "text_encoder": ("CLIPTextModel", CLIP),
    },
    SIZE | GUIDED,
    unguided=UNGUIDED,
    empty=("safety_checker", "feature_extractor", "image_encoder"),
    settings={"requires_safety_checker": False},
)
CONTROLLED = SD15.components | {"controlnet": ("ControlNetModel", CONTROLNET)}
NO_CHECKER = {"empty": ("safety_checker", "feature_extractor")}
NOTHING_ELSE = {"empty": (), "settings": {}}

PIPELINES = {
    "sd15": SD15,
    "sd15_img2img": replace(
        SD15, pipeline="StableDiffusionImg2ImgPipeline", sampling=GUIDED | STRENGTH, conditions=IMAGE
    ),
    "sd15_inpaint": replace(SD15, pipeline="StableDiffusionInpaintPipeline", conditions=MASKED),
    "sd15_inpaint_9_channels": replace(
        SD15,
        pipeline="StableDiffusionInpaintPipeline",
        components=SD15.components | {"unet": ("UNet2DConditionModel", UNET | {"in_channels": 9})},
        conditions=MASKED,
    ),
    "sd15_controlnet": replace(
        SD15, pipeline="StableDiffusionControlNetPipeline", components=CONTROLLED, conditions=IMAGE
    ),
    "sd15_controlnet_img2img": replace(
        SD15,
        pipeline="StableDiffusionControlNetImg2ImgPipeline",
        components=CONTROLLED,
        sampling=GUIDED | STRENGTH,
        conditions=IMAGE | {"control_image": PICTURE},
    ),
    "sd15_controlnet_inpaint": replace(
        SD15,
        pipeline="StableDiffusionControlNetInpaintPipeline",
        components=CONTROLLED,
        conditions=MASKED | {"control_image": PICTURE},
    ),
    "sd15_controlnet_xs": replace(
        SD15,
        pipeline="StableDiffusionControlNetXSPipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"layers_per_block": 2}),
            "controlnet": ("ControlNetXSAdapter", CONTROLNET_XS),
        },
        conditions=IMAGE,
        **NO_CHECKER,
    ),
    "sd15_adapter": replace(
        SD15,
        pipeline="StableDiffusionAdapterPipeline",
        components=SD15.components
        | {
            "unet": (
                "UNet2DConditionModel",
                UNET
                | {
                    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
                },
            ),
            "adapter": ("T2IAdapter", {"channels": (8, 16), "num_res_blocks": 1, "downscale_factor": 2}),
        },
        conditions=IMAGE,
        **NO_CHECKER,
    ),
    "sd15_pix2pix": replace(
        SD15,
        pipeline="StableDiffusionInstructPix2PixPipeline",
        components=SD15.components | {"unet": ("UNet2DConditionModel", UNET | {"in_channels": 8})},
        sampling=GUIDED | {"pipeline_args": {"image_guidance_scale": 1.5}},
        conditions=IMAGE,
    ),
    "sd15_pag": replace(SD15, pipeline="StableDiffusionPAGPipeline", unguided=NO_PAG),
    "sd15_pag_img2img": replace(
        SD15,
        pipeline="StableDiffusionPAGImg2ImgPipeline",
        sampling=GUIDED | STRONG_PAG,
        unguided=STRONG_NO_PAG,
        conditions=IMAGE,
    ),
    "sd15_pag_inpaint": replace(SD15, pipeline="StableDiffusionPAGInpaintPipeline", unguided=NO_PAG, conditions=MASKED),
    "sd15_controlnet_pag": replace(
        SD15,
        pipeline="StableDiffusionControlNetPAGPipeline",
        components=CONTROLLED,
        unguided=NO_PAG,
        conditions=IMAGE,
    ),
    "sd15_controlnet_pag_inpaint": replace(
        SD15,
        pipeline="StableDiffusionControlNetPAGInpaintPipeline",
        components=CONTROLLED,
        unguided=NO_PAG,
        conditions=MASKED | {"control_image": PICTURE},
    ),
    "gligen": replace(
        SD15,
        pipeline="StableDiffusionGLIGENPipeline",
        components=SD15.components | {"unet": ("UNet2DConditionModel", UNET | {"attention_type": "gated"})},
        sampling=SD15.sampling
        | {"pipeline_args": {"gligen_phrases": ["a circle"], "gligen_boxes": [[0.1, 0.2, 0.6, 0.8]]}},
        **NO_CHECKER,
    ),
    "lcm": replace(
        SD15,
        pipeline="LatentConsistencyModelPipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"time_cond_proj_dim": 16}),
            "scheduler": ("LCMScheduler", BETAS | {"clip_sample": False, "set_alpha_to_one": True}),
        },
        sampling=SD15.sampling | NATIVE,
        unguided=None,  # distilled: the scale is an input of the UNet
    ),
    "sd_variations": replace(
        SD15,
        pipeline="StableDiffusionImageVariationPipeline",
        components={name: SD15.components[name] for name in ("unet", "vae", "scheduler")}
        | {"image_encoder": CLIP_VISION, "feature_extractor": CLIP_PICTURES},
        conditions=IMAGE,
        tokenizers=(),
        reads_prompt=False,
        empty=("safety_checker",),
    ),
    "sd2_depth": replace(
        SD15,
        pipeline="StableDiffusionDepth2ImgPipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"in_channels": 5}),
            "depth_estimator": (
                "DPTForDepthEstimation",
                {
                    "hidden_size": 16,
                    "num_hidden_layers": 4,
                    "num_attention_heads": 2,
                    "intermediate_size": 16,
                    "image_size": 32,
                    "patch_size": 16,
                    "backbone_out_indices": [0, 1, 2, 3],
                    "neck_hidden_sizes": [8, 8, 8, 8],
                    "fusion_hidden_size": 8,
                },
            ),
            "feature_extractor": ("DPTImageProcessor", {"size": {"height": 32, "width": 32}}),
        },
        sampling=GUIDED | STRENGTH,
        conditions=IMAGE,
        **NOTHING_ELSE,
    ),
    "sd2_unclip": replace(
        SD15,
        pipeline="StableUnCLIPImg2ImgPipeline",
        components=SD15.components
        | {
            "unet": (
                "UNet2DConditionModel",
                UNET | {"class_embed_type": "projection", "projection_class_embeddings_input_dim": 32},
            ),
            "scheduler": V_DDIM,
            "image_encoder": CLIP_VISION,
            "feature_extractor": CLIP_PICTURES,
            "image_normalizer": (
                "diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer.StableUnCLIPImageNormalizer",
                {"embedding_dim": 16},
            ),
            "image_noising_scheduler": NOISING,
        },
        conditions=IMAGE,
        **NOTHING_ELSE,
    ),
    "sd2_upscale": replace(
        SD15,
        pipeline="StableDiffusionUpscalePipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"in_channels": 7, "num_class_embeds": 350}),
            "vae": (KL_VAE[0], KL_VAE[1] | {"scaling_factor": 0.08333}),
            "low_res_scheduler": ("DDPMScheduler", BETAS),
            "scheduler": V_DDIM,
        },
        sampling=GUIDED,
        conditions={"image": (8, 8)},
        empty=("safety_checker", "feature_extractor", "watermarker"),
        settings={},
    ),
    "sd2_latent_upscale": replace(
        SD15,
        pipeline="StableDiffusionLatentUpscalePipeline",
        components=SD15.components
        | {
            "unet": (
                "UNet2DConditionModel",
                {
                    "block_out_channels": (32, 64, 64),
                    "layers_per_block": 1,
                    "in_channels": 8,
                    "out_channels": 5,
                    "down_block_types": ("KDownBlock2D", "KCrossAttnDownBlock2D", "KCrossAttnDownBlock2D"),
                    "mid_block_type": None,
                    "up_block_types": ("KCrossAttnUpBlock2D", "KCrossAttnUpBlock2D", "KUpBlock2D"),
                    "cross_attention_dim": 16,
                    "attention_head_dim": 8,
                    "norm_num_groups": None,
                    "conv_in_kernel": 1,
                    "conv_out_kernel": 1,
                    "act_fn": "gelu",
                    "resnet_time_scale_shift": "scale_shift",
                    "time_embedding_type": "fourier",
                    "timestep_post_act": "gelu",
                    "time_cond_proj_dim": 144,
                },
            ),
            "scheduler": ("EulerDiscreteScheduler", BETAS | {"prediction_type": "sample"}),
        },
        sampling=GUIDED,
        conditions={"image": (8, 8)},
        **NOTHING_ELSE,
    ),
}
PIPELINES["lcm_img2img"] = replace(
    PIPELINES["lcm"],
    pipeline="LatentConsistencyModelImg2ImgPipeline",
    sampling=GUIDED | NATIVE | {"pipeline_args": {"strength": 0.9}},
    conditions=IMAGE,
)
PIPELINES["sd2_unclip_text"] = replace(
    SD15,
    pipeline="StableUnCLIPPipeline",
    components={
        name: each
        for name, each in PIPELINES["sd2_unclip"].components.items()
        if name not in ("image_encoder", "feature_extractor")
    }
    | {
        "prior": PRIOR,
        "prior_text_encoder": ("CLIPTextModelWithProjection", CLIP),
        "prior_scheduler": UNCLIP,
    },
    sampling=SD15.sampling | SHORT_PRIOR,
    tokenizers=("tokenizer", "prior_tokenizer"),
    **NOTHING_ELSE,
)
PIPELINES["latent_diffusion"] = Tiny(
    "LDMTextToImagePipeline",
    {
        "unet": ("UNet2DConditionModel", UNET),
        "vqvae": KL_VAE,
        "bert": (
            "diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion.LDMBertModel",
            {
                "vocab_size": CLIP["vocab_size"],
                "d_model": 16,
                "encoder_layers": 1,
                "encoder_ffn_dim": 16,
                "encoder_attention_heads": 2,
                "head_dim": 8,
                "max_position_embeddings": 77,
            },
        ),
        "scheduler": DDIM,
    },
    SIZE | GUIDED,
    unguided=UNGUIDED,
)
