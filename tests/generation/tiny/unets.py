"""Tiny pipelines with a UNet, as data."""

from __future__ import annotations

from dataclasses import replace

from tiny.components import CLIP, KL_VAE, T5, Component
from tiny.factory import Tiny

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
XL_UNET = UNET | {
    "cross_attention_dim": 32,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
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
XL_CONTROLNET = CONTROLNET | {
    "cross_attention_dim": 32,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
UNION = XL_CONTROLNET | {"num_control_type": 2, "num_trans_channel": 8, "num_trans_head": 2, "num_proj_channel": 8}
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

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
DDIM: Component = ("DDIMScheduler", BETAS | {"clip_sample": False, "set_alpha_to_one": False})
EULER: Component = ("EulerDiscreteScheduler", BETAS | {"timestep_spacing": "leading"})
PICTURE = (16, 16)

SD15 = Tiny(
    "StableDiffusionPipeline",
    {
        "unet": ("UNet2DConditionModel", UNET),
        "scheduler": DDIM,
        "vae": KL_VAE,
        "text_encoder": ("CLIPTextModel", CLIP),
    },
    {"height": 16, "width": 16, "guidance_scale": 3.0, "transition": {"name": "ddim", "noise_level": 1.0}},
    unguided={"guidance_scale": 1.0},
    empty=("safety_checker", "feature_extractor", "image_encoder"),
    settings={"requires_safety_checker": False},
)
SIZELESS = {name: value for name, value in SD15.sampling.items() if name not in ("height", "width")}
SDXL = Tiny(
    "StableDiffusionXLPipeline",
    {
        "unet": ("UNet2DConditionModel", XL_UNET),
        "scheduler": EULER,
        "vae": KL_VAE,
        "text_encoder": ("CLIPTextModel", CLIP),
        "text_encoder_2": ("CLIPTextModelWithProjection", CLIP),
    },
    SD15.sampling | {"negative_prompt": "blurry"},
    unguided={"guidance_scale": 1.0},
    tokenizers=("tokenizer", "tokenizer_2"),
    settings={"add_watermarker": False},
)
XL_SIZELESS = SIZELESS | {"negative_prompt": "blurry"}

PIPELINES = {
    "sd15": SD15,
    "sd15_img2img": replace(
        SD15,
        pipeline="StableDiffusionImg2ImgPipeline",
        sampling=SIZELESS | {"pipeline_args": {"strength": 0.75}},
        conditions={"image": PICTURE},
    ),
    "sd15_inpaint": replace(
        SD15, pipeline="StableDiffusionInpaintPipeline", conditions={"image": PICTURE, "mask_image": PICTURE}
    ),
    "sd15_controlnet": replace(
        SD15,
        pipeline="StableDiffusionControlNetPipeline",
        components=SD15.components | {"controlnet": ("ControlNetModel", CONTROLNET)},
        conditions={"image": PICTURE},
    ),
    "sdxl": SDXL,
    "sdxl_img2img": replace(
        SDXL,
        pipeline="StableDiffusionXLImg2ImgPipeline",
        sampling=XL_SIZELESS | {"pipeline_args": {"strength": 0.75}},
        conditions={"image": PICTURE},
    ),
    "sdxl_inpaint": replace(
        SDXL, pipeline="StableDiffusionXLInpaintPipeline", conditions={"image": PICTURE, "mask_image": PICTURE}
    ),
    "sdxl_controlnet": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetPipeline",
        components=SDXL.components | {"controlnet": ("ControlNetModel", XL_CONTROLNET)},
        conditions={"image": PICTURE},
    ),
}
PIPELINES["sd15_inpaint_9_channels"] = replace(
    PIPELINES["sd15_inpaint"],
    components=SD15.components | {"unet": ("UNet2DConditionModel", UNET | {"in_channels": 9})},
)
PIPELINES |= {
    "sd15_controlnet_img2img": replace(
        PIPELINES["sd15_controlnet"],
        pipeline="StableDiffusionControlNetImg2ImgPipeline",
        sampling=SIZELESS | {"pipeline_args": {"strength": 0.75}},
        conditions={"image": PICTURE, "control_image": PICTURE},
    ),
    "sd15_controlnet_inpaint": replace(
        PIPELINES["sd15_controlnet"],
        pipeline="StableDiffusionControlNetInpaintPipeline",
        conditions={"image": PICTURE, "mask_image": PICTURE, "control_image": PICTURE},
    ),
    "sdxl_controlnet_img2img": replace(
        PIPELINES["sdxl_controlnet"],
        pipeline="StableDiffusionXLControlNetImg2ImgPipeline",
        sampling=SDXL.sampling | {"pipeline_args": {"strength": 0.75}},
        conditions={"image": PICTURE, "control_image": PICTURE},
    ),
    "sdxl_controlnet_inpaint": replace(
        PIPELINES["sdxl_controlnet"],
        pipeline="StableDiffusionXLControlNetInpaintPipeline",
        conditions={"image": PICTURE, "mask_image": PICTURE, "control_image": PICTURE},
    ),
    "sdxl_controlnet_union": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetUnionPipeline",
        components=SDXL.components | {"controlnet": ("ControlNetUnionModel", UNION)},
        conditions={"control_image": PICTURE, "control_mode": 1},
    ),
    "sd15_pix2pix": replace(
        SD15,
        pipeline="StableDiffusionInstructPix2PixPipeline",
        components=SD15.components | {"unet": ("UNet2DConditionModel", UNET | {"in_channels": 8})},
        sampling=SIZELESS | {"pipeline_args": {"image_guidance_scale": 1.5}},
        conditions={"image": PICTURE},
    ),
    "sdxl_pix2pix": replace(
        SDXL,
        pipeline="StableDiffusionXLInstructPix2PixPipeline",
        components=SDXL.components | {"unet": ("UNet2DConditionModel", XL_UNET | {"in_channels": 8})},
        sampling=SDXL.sampling | {"pipeline_args": {"image_guidance_scale": 1.5}},
        conditions={"image": PICTURE},
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
        conditions={"image": PICTURE},
        empty=("safety_checker", "feature_extractor"),
    ),
    "sdxl_adapter": replace(
        SDXL,
        pipeline="StableDiffusionXLAdapterPipeline",
        components=SDXL.components
        | {
            "adapter": (
                "T2IAdapter",
                {
                    "adapter_type": "full_adapter_xl",
                    "channels": (8, 16),
                    "num_res_blocks": 1,
                    "downscale_factor": 4,
                },
            )
        },
        conditions={"image": PICTURE},
        settings={},
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
        sampling=SIZELESS | {"pipeline_args": {"strength": 0.75}},
        conditions={"image": PICTURE},
        empty=(),
        settings={},
    ),
    "sd15_pag": replace(
        SD15,
        pipeline="StableDiffusionPAGPipeline",
        sampling=SD15.sampling | {"pipeline_args": {"pag_scale": 3.0}},
        unguided={"guidance_scale": 1.0, "pipeline_args": {"pag_scale": 0.0}},
    ),
    "sdxl_pag": replace(
        SDXL,
        pipeline="StableDiffusionXLPAGPipeline",
        sampling=SDXL.sampling | {"pipeline_args": {"pag_scale": 3.0}},
        unguided={"guidance_scale": 1.0, "pipeline_args": {"pag_scale": 0.0}},
    ),
    "sd_variations": replace(
        SD15,
        pipeline="StableDiffusionImageVariationPipeline",
        components={name: SD15.components[name] for name in ("unet", "vae", "scheduler")}
        | {"image_encoder": CLIP_VISION, "feature_extractor": CLIP_PICTURES},
        conditions={"image": PICTURE},
        tokenizers=(),
        empty=("safety_checker",),
    ),
    "sd_upscale": replace(
        SD15,
        pipeline="StableDiffusionUpscalePipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"in_channels": 7, "num_class_embeds": 350}),
            "vae": (KL_VAE[0], KL_VAE[1] | {"scaling_factor": 0.08333}),
            "low_res_scheduler": ("DDPMScheduler", BETAS),
            "scheduler": ("DDIMScheduler", BETAS | {"clip_sample": False, "prediction_type": "v_prediction"}),
        },
        sampling=SIZELESS,
        conditions={"image": (8, 8)},
        empty=("safety_checker", "feature_extractor", "watermarker"),
        settings={},
    ),
    "lcm": replace(
        SD15,
        pipeline="LatentConsistencyModelPipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"time_cond_proj_dim": 16}),
            "scheduler": ("LCMScheduler", BETAS | {"clip_sample": False, "set_alpha_to_one": True}),
        },
        sampling=SD15.sampling | {"transition": {"name": "native"}},
        unguided=None,
    ),
    "animatediff": replace(
        SD15,
        pipeline="AnimateDiffPipeline",
        components=SD15.components
        | {
            "motion_adapter": (
                "MotionAdapter",
                {
                    "block_out_channels": (8, 16),
                    "motion_layers_per_block": 1,
                    "motion_num_attention_heads": 2,
                    "motion_norm_num_groups": 4,
                },
            ),
            "scheduler": ("DDIMScheduler", BETAS | {"beta_schedule": "linear", "clip_sample": False}),
        },
        sampling=SD15.sampling | {"num_frames": 2},
        empty=("feature_extractor", "image_encoder"),
        settings={},
    ),
}

SPATIAL_VQ: Component = (
    "VQModel",
    {
        "block_out_channels": (32, 32),
        "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "norm_type": "spatial",
        "latent_channels": 4,
        "num_vq_embeddings": 8,
        "vq_embed_dim": 4,
    },
)
SIMPLE_UNET = UNET | {
    "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
    "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
    "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
    "resnet_time_scale_shift": "scale_shift",
}

PIPELINES["kandinsky22"] = replace(
    SD15,
    pipeline="KandinskyV22CombinedPipeline",
    components={
        "unet": (
            "UNet2DConditionModel",
            SIMPLE_UNET
            | {
                "out_channels": 8,
                "addition_embed_type": "image",
                "encoder_hid_dim": 16,
                "encoder_hid_dim_type": "image_proj",
            },
        ),
        "scheduler": ("DDIMScheduler", {"clip_sample": False}),
        "movq": SPATIAL_VQ,
        "prior_prior": (
            "PriorTransformer",
            {
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "num_layers": 1,
                "embedding_dim": 16,
                "num_embeddings": 16,
            },
        ),
        "prior_text_encoder": ("CLIPTextModelWithProjection", CLIP),
        "prior_image_encoder": CLIP_VISION,
        "prior_image_processor": CLIP_PICTURES,
        "prior_scheduler": (
            "UnCLIPScheduler",
            {"variance_type": "fixed_small_log", "prediction_type": "sample", "clip_sample_range": 5.0},
        ),
    },
    sampling=SD15.sampling | {"pipeline_args": {"prior_num_inference_steps": 2}},
    tokenizers=("prior_tokenizer",),
    empty=(),
    settings={},
)
PIPELINES |= {
    "kandinsky22_img2img": replace(
        PIPELINES["kandinsky22"],
        pipeline="KandinskyV22Img2ImgCombinedPipeline",
        sampling=SD15.sampling | {"pipeline_args": {"prior_num_inference_steps": 2, "strength": 0.75}},
        conditions={"image": PICTURE},
    ),
    "kandinsky22_inpaint": replace(
        PIPELINES["kandinsky22"],
        pipeline="KandinskyV22InpaintCombinedPipeline",
        components=PIPELINES["kandinsky22"].components
        | {
            "unet": (
                "UNet2DConditionModel",
                PIPELINES["kandinsky22"].components["unet"][1] | {"in_channels": 9},
            )
        },
        conditions={"image": PICTURE, "mask_image": PICTURE},
    ),
    "kandinsky3": Tiny(
        "Kandinsky3Pipeline",
        {
            "unet": (
                "Kandinsky3UNet",
                {
                    "time_embedding_dim": 8,
                    "groups": 2,
                    "attention_head_dim": 4,
                    "layers_per_block": 2,
                    "block_out_channels": (8, 16),
                    "cross_attention_dim": 8,
                    "encoder_hid_dim": 32,
                },
            ),
            "scheduler": ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2"}),
            "movq": SPATIAL_VQ,
            "text_encoder": T5,
        },
        {"height": 64, "width": 64, "guidance_scale": 3.0, "transition": {"name": "native"}},
        unguided={"guidance_scale": 1.0},
        own_rows=False,  # it averages over padding
    ),
    "deepfloyd_if": replace(
        SD15,
        pipeline="IFPipeline",
        components={
            "unet": (
                "UNet2DConditionModel",
                SIMPLE_UNET
                | {
                    "in_channels": 3,
                    "out_channels": 6,
                    "encoder_hid_dim": 32,
                    "addition_embed_type": "text",
                    "addition_embed_type_num_heads": 2,
                },
            ),
            "scheduler": ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2", "thresholding": True}),
            "text_encoder": T5,
        },
        sampling={"height": 8, "width": 8, "guidance_scale": 3.0, "transition": {"name": "native"}},
        empty=("safety_checker", "feature_extractor", "watermarker"),
    ),
    "sd_latent_upscale": replace(
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
        sampling=SIZELESS,
        conditions={"image": (8, 8)},
        empty=(),
        settings={},
    ),
    "lcm_img2img": replace(
        PIPELINES["lcm"],
        pipeline="LatentConsistencyModelImg2ImgPipeline",
        sampling=SIZELESS | {"transition": {"name": "native"}, "pipeline_args": {"strength": 0.9}},
        conditions={"image": PICTURE},
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
            "scheduler": (
                "EulerDiscreteScheduler",
                BETAS
                | {
                    "prediction_type": "v_prediction",
                    "timestep_type": "continuous",
                    "use_karras_sigmas": True,
                    "sigma_min": 0.002,
                    "sigma_max": 700.0,
                },
            ),
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
        conditions={"image": PICTURE},
        tokenizers=(),
    ),
}

PAG_OFF = {"guidance_scale": 1.0, "pipeline_args": {"pag_scale": 0.0}}
STRONG_PAG = {"pipeline_args": {"pag_scale": 3.0, "strength": 0.75}}
STRONG_PAG_OFF = {"guidance_scale": 1.0, "pipeline_args": {"pag_scale": 0.0, "strength": 0.75}}
MOTION_ADAPTER: Component = PIPELINES["animatediff"].components["motion_adapter"]
PIPELINES |= {
    "sd15_pag_img2img": replace(
        PIPELINES["sd15_img2img"],
        pipeline="StableDiffusionPAGImg2ImgPipeline",
        sampling=SIZELESS | STRONG_PAG,
        unguided=STRONG_PAG_OFF,
    ),
    "sd15_pag_inpaint": replace(
        PIPELINES["sd15_inpaint"], pipeline="StableDiffusionPAGInpaintPipeline", unguided=PAG_OFF
    ),
    "sdxl_pag_img2img": replace(
        PIPELINES["sdxl_img2img"],
        pipeline="StableDiffusionXLPAGImg2ImgPipeline",
        sampling=XL_SIZELESS | STRONG_PAG,
        unguided=STRONG_PAG_OFF,
    ),
    "sdxl_pag_inpaint": replace(
        PIPELINES["sdxl_inpaint"], pipeline="StableDiffusionXLPAGInpaintPipeline", unguided=PAG_OFF
    ),
    "sd15_controlnet_pag": replace(
        PIPELINES["sd15_controlnet"], pipeline="StableDiffusionControlNetPAGPipeline", unguided=PAG_OFF
    ),
    "sd15_controlnet_pag_inpaint": replace(
        PIPELINES["sd15_controlnet_inpaint"], pipeline="StableDiffusionControlNetPAGInpaintPipeline", unguided=PAG_OFF
    ),
    "sdxl_controlnet_pag": replace(
        PIPELINES["sdxl_controlnet"], pipeline="StableDiffusionXLControlNetPAGPipeline", unguided=PAG_OFF
    ),
    "sdxl_controlnet_pag_img2img": replace(
        PIPELINES["sdxl_controlnet_img2img"],
        pipeline="StableDiffusionXLControlNetPAGImg2ImgPipeline",
        sampling=SDXL.sampling | STRONG_PAG,
        unguided=STRONG_PAG_OFF,
    ),
    "sdxl_controlnet_union_img2img": replace(
        PIPELINES["sdxl_controlnet_union"],
        pipeline="StableDiffusionXLControlNetUnionImg2ImgPipeline",
        sampling=SDXL.sampling | {"pipeline_args": {"strength": 0.75}},
        conditions={"image": PICTURE, "control_image": PICTURE, "control_mode": 1},
    ),
    "sdxl_controlnet_union_inpaint": replace(
        PIPELINES["sdxl_controlnet_union"],
        pipeline="StableDiffusionXLControlNetUnionInpaintPipeline",
        conditions={"image": PICTURE, "mask_image": PICTURE, "control_image": PICTURE, "control_mode": 1},
    ),
    "animatediff_sdxl": replace(
        SDXL,
        pipeline="AnimateDiffSDXLPipeline",
        components=SDXL.components
        | {"motion_adapter": (MOTION_ADAPTER[0], MOTION_ADAPTER[1] | {"use_motion_mid_block": False})},
        sampling=SDXL.sampling | {"num_frames": 2},
        settings={},
    ),
    "animatediff_pag": replace(PIPELINES["animatediff"], pipeline="AnimateDiffPAGPipeline", unguided=PAG_OFF),
    "animatediff_video": replace(
        PIPELINES["animatediff"],
        pipeline="AnimateDiffVideoToVideoPipeline",
        sampling=SD15.sampling | {"pipeline_args": {"strength": 0.75}},
        conditions={"video": (16, 16, 2)},
    ),
    "kandinsky3_img2img": replace(
        PIPELINES["kandinsky3"],
        pipeline="Kandinsky3Img2ImgPipeline",
        sampling={"guidance_scale": 3.0, "transition": {"name": "native"}, "pipeline_args": {"strength": 0.75}},
        conditions={"image": (64, 64)},
        own_rows=True,
    ),
    "deepfloyd_if_img2img": replace(
        PIPELINES["deepfloyd_if"],
        pipeline="IFImg2ImgPipeline",
        sampling={"guidance_scale": 3.0, "transition": {"name": "native"}, "pipeline_args": {"strength": 0.75}},
        conditions={"image": (64, 64)},
    ),
    "deepfloyd_if_inpaint": replace(
        PIPELINES["deepfloyd_if"],
        pipeline="IFInpaintingPipeline",
        sampling={"guidance_scale": 3.0, "transition": {"name": "native"}},
        conditions={"image": (64, 64), "mask_image": (64, 64)},
    ),
    "deepfloyd_if_upscale": replace(
        PIPELINES["deepfloyd_if"],
        pipeline="IFSuperResolutionPipeline",
        components=PIPELINES["deepfloyd_if"].components
        | {
            "unet": (
                "UNet2DConditionModel",
                PIPELINES["deepfloyd_if"].components["unet"][1] | {"in_channels": 6, "class_embed_type": "timestep"},
            ),
            "image_noising_scheduler": ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2"}),
        },
        conditions={"image": (4, 4)},
    ),
    "sd_unclip": replace(
        SD15,
        pipeline="StableUnCLIPImg2ImgPipeline",
        components=SD15.components
        | {
            "unet": (
                "UNet2DConditionModel",
                UNET | {"class_embed_type": "projection", "projection_class_embeddings_input_dim": 32},
            ),
            "scheduler": ("DDIMScheduler", BETAS | {"clip_sample": False, "prediction_type": "v_prediction"}),
            "image_encoder": CLIP_VISION,
            "feature_extractor": CLIP_PICTURES,
            "image_normalizer": (
                "diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer.StableUnCLIPImageNormalizer",
                {"embedding_dim": 16},
            ),
            "image_noising_scheduler": ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2"}),
        },
        conditions={"image": PICTURE},
        empty=(),
        settings={},
    ),
    "gligen": replace(
        SD15,
        pipeline="StableDiffusionGLIGENPipeline",
        components=SD15.components | {"unet": ("UNet2DConditionModel", UNET | {"attention_type": "gated"})},
        sampling=SD15.sampling
        | {"pipeline_args": {"gligen_phrases": ["a circle"], "gligen_boxes": [[0.1, 0.2, 0.6, 0.8]]}},
        empty=("safety_checker", "feature_extractor"),
    ),
    "sd15_controlnet_xs": replace(
        SD15,
        pipeline="StableDiffusionControlNetXSPipeline",
        components=SD15.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"layers_per_block": 2}),
            "controlnet": (
                "ControlNetXSAdapter",
                {
                    "block_out_channels": (4, 8),
                    "base_block_out_channels": (8, 16),
                    "conditioning_embedding_out_channels": (4, 8),
                    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                    "sample_size": 8,
                    "cross_attention_dim": 16,
                    "num_attention_heads": 2,
                    "max_norm_num_groups": 4,
                    "use_linear_projection": False,
                },
            ),
        },
        conditions={"image": PICTURE},
        empty=("safety_checker", "feature_extractor"),
    ),
}
PIPELINES |= {
    "pia": replace(
        PIPELINES["animatediff"],
        pipeline="PIAPipeline",
        components=PIPELINES["animatediff"].components
        | {
            "unet": ("UNet2DConditionModel", UNET),
            "motion_adapter": (MOTION_ADAPTER[0], MOTION_ADAPTER[1] | {"conv_in_channels": 9}),
        },
        conditions={"image": PICTURE},
    ),
}
PIPELINES["kandinsky21"] = replace(
    PIPELINES["kandinsky22"],
    pipeline="KandinskyCombinedPipeline",
    components=PIPELINES["kandinsky22"].components
    | {
        "unet": (
            "UNet2DConditionModel",
            SIMPLE_UNET
            | {
                "out_channels": 8,
                "addition_embed_type": "text_image",
                "encoder_hid_dim": 16,
                "encoder_hid_dim_type": "text_image_proj",
            },
        ),
        "text_encoder": (
            "diffusers.pipelines.kandinsky.text_encoder.MultilingualCLIP",
            {
                "transformerDimSize": 16,
                "imageDimSize": 16,
                "vocab_size": CLIP["vocab_size"],
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "max_position_embeddings": 80,
                "pad_token_id": 0,
            },
        ),
    },
    tokenizers=("tokenizer", "prior_tokenizer"),
)
PIPELINES |= {
    "kandinsky21_img2img": replace(
        PIPELINES["kandinsky21"],
        pipeline="KandinskyImg2ImgCombinedPipeline",
        sampling=PIPELINES["kandinsky22_img2img"].sampling,
        conditions={"image": PICTURE},
    ),
    "kandinsky21_inpaint": replace(
        PIPELINES["kandinsky21"],
        pipeline="KandinskyInpaintCombinedPipeline",
        components=PIPELINES["kandinsky21"].components
        | {"unet": ("UNet2DConditionModel", PIPELINES["kandinsky21"].components["unet"][1] | {"in_channels": 9})},
        conditions={"image": PICTURE, "mask_image": PICTURE},
    ),
}
