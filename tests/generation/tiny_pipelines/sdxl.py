"""Tiny pipelines of Stable Diffusion XL, as data."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines import unets
from tests.generation.tiny_pipelines.components import CLIP, KL_VAE, Component
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.unets import (
    BETAS,
    IMAGE,
    MASKED,
    NO_PAG,
    PICTURE,
    STRENGTH,
    STRONG_NO_PAG,
    STRONG_PAG,
    UNGUIDED,
)

TIMES_AND_TEXT = {
    "cross_attention_dim": 32,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
UNET = unets.UNET | TIMES_AND_TEXT
CONTROLNET = unets.CONTROLNET | TIMES_AND_TEXT
UNION = CONTROLNET | {"num_control_type": 2, "num_trans_channel": 8, "num_trans_head": 2, "num_proj_channel": 8}
EULER: Component = ("EulerDiscreteScheduler", BETAS | {"timestep_spacing": "leading"})
GUIDED = unets.GUIDED | {"negative_prompt": "blurry"}

SDXL = Tiny(
    "StableDiffusionXLPipeline",
    {
        "unet": ("UNet2DConditionModel", UNET),
        "scheduler": EULER,
        "vae": KL_VAE,
        "text_encoder": ("CLIPTextModel", CLIP),
        "text_encoder_2": ("CLIPTextModelWithProjection", CLIP),
    },
    unets.SIZE | GUIDED,
    unguided=UNGUIDED,
    tokenizers=("tokenizer", "tokenizer_2"),
    settings={"add_watermarker": False},
)
CONTROLLED = SDXL.components | {"controlnet": ("ControlNetModel", CONTROLNET)}
UNITED = SDXL.components | {"controlnet": ("ControlNetUnionModel", UNION)}

PIPELINES = {
    "sdxl": SDXL,
    "sdxl_img2img": replace(
        SDXL, pipeline="StableDiffusionXLImg2ImgPipeline", sampling=GUIDED | STRENGTH, conditions=IMAGE
    ),
    "sdxl_inpaint": replace(SDXL, pipeline="StableDiffusionXLInpaintPipeline", conditions=MASKED),
    "sdxl_pix2pix": replace(
        SDXL,
        pipeline="StableDiffusionXLInstructPix2PixPipeline",
        components=SDXL.components | {"unet": ("UNet2DConditionModel", UNET | {"in_channels": 8})},
        sampling=SDXL.sampling | {"pipeline_args": {"image_guidance_scale": 1.5}},
        conditions=IMAGE,
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
        conditions=IMAGE,
        settings={},
    ),
    "sdxl_controlnet": replace(
        SDXL, pipeline="StableDiffusionXLControlNetPipeline", components=CONTROLLED, conditions=IMAGE
    ),
    "sdxl_controlnet_img2img": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetImg2ImgPipeline",
        components=CONTROLLED,
        sampling=SDXL.sampling | STRENGTH,
        conditions=IMAGE | {"control_image": PICTURE},
    ),
    "sdxl_controlnet_inpaint": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetInpaintPipeline",
        components=CONTROLLED,
        conditions=MASKED | {"control_image": PICTURE},
    ),
    "sdxl_controlnet_union": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetUnionPipeline",
        components=UNITED,
        conditions={"control_image": PICTURE, "control_mode": 1},
    ),
    "sdxl_controlnet_union_img2img": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetUnionImg2ImgPipeline",
        components=UNITED,
        sampling=SDXL.sampling | STRENGTH,
        conditions=IMAGE | {"control_image": PICTURE, "control_mode": 1},
    ),
    "sdxl_controlnet_union_inpaint": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetUnionInpaintPipeline",
        components=UNITED,
        conditions=MASKED | {"control_image": PICTURE, "control_mode": 1},
    ),
    "sdxl_controlnet_xs": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetXSPipeline",
        components=SDXL.components
        | {
            "unet": ("UNet2DConditionModel", UNET | {"layers_per_block": 2}),
            "controlnet": (
                "ControlNetXSAdapter",
                unets.CONTROLNET_XS | {"cross_attention_dim": 32, "use_linear_projection": True},
            ),
        },
        conditions=IMAGE,
    ),
    "sdxl_pag": replace(SDXL, pipeline="StableDiffusionXLPAGPipeline", unguided=NO_PAG),
    "sdxl_pag_img2img": replace(
        SDXL,
        pipeline="StableDiffusionXLPAGImg2ImgPipeline",
        sampling=GUIDED | STRONG_PAG,
        unguided=STRONG_NO_PAG,
        conditions=IMAGE,
    ),
    "sdxl_pag_inpaint": replace(
        SDXL, pipeline="StableDiffusionXLPAGInpaintPipeline", unguided=NO_PAG, conditions=MASKED
    ),
    "sdxl_controlnet_pag": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetPAGPipeline",
        components=CONTROLLED,
        unguided=NO_PAG,
        conditions=IMAGE,
    ),
    "sdxl_controlnet_pag_img2img": replace(
        SDXL,
        pipeline="StableDiffusionXLControlNetPAGImg2ImgPipeline",
        components=CONTROLLED,
        sampling=SDXL.sampling | STRONG_PAG,
        unguided=STRONG_NO_PAG,
        conditions=IMAGE | {"control_image": PICTURE},
    ),
}
