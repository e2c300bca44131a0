"""Tiny pipelines of Kandinsky 2 and 3 and of DeepFloyd IF, as data."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import CLIP, T5, Component
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.unets import (
    CLIP_PICTURES,
    CLIP_VISION,
    GUIDED,
    IMAGE,
    MASKED,
    NATIVE,
    NOISING,
    PRIOR,
    SHORT_PRIOR,
    SIZE,
    UNCLIP,
    UNET,
    UNGUIDED,
)

VQ: Component = (
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
DECODER = SIMPLE_UNET | {
    "out_channels": 8,  # with a variance that its scheduler does not use
    "addition_embed_type": "image",
    "encoder_hid_dim": 16,
    "encoder_hid_dim_type": "image_proj",
}
DECODER_21 = DECODER | {"addition_embed_type": "text_image", "encoder_hid_dim_type": "text_image_proj"}
STRENGTH = {"pipeline_args": {"prior_num_inference_steps": 2, "strength": 0.75}}

KANDINSKY22 = Tiny(
    "KandinskyV22CombinedPipeline",
    {
        "unet": ("UNet2DConditionModel", DECODER),
        "scheduler": ("DDIMScheduler", {"clip_sample": False}),
        "movq": VQ,
        "prior_prior": PRIOR,
        "prior_text_encoder": ("CLIPTextModelWithProjection", CLIP),
        "prior_image_encoder": CLIP_VISION,
        "prior_image_processor": CLIP_PICTURES,
        "prior_scheduler": UNCLIP,
    },
    SIZE | GUIDED | SHORT_PRIOR,
    unguided=UNGUIDED,
    tokenizers=("prior_tokenizer",),
)
KANDINSKY21 = replace(
    KANDINSKY22,
    pipeline="KandinskyCombinedPipeline",
    components=KANDINSKY22.components
    | {
        "unet": ("UNet2DConditionModel", DECODER_21),
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
KANDINSKY3 = Tiny(
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
        "scheduler": NOISING,
        "movq": VQ,
        "text_encoder": T5,
    },
    {"height": 64, "width": 64, "guidance_scale": 3.0} | NATIVE,
    unguided=UNGUIDED,
    own_rows=False,  # it averages the text over padding too
)
PIXEL_UNET = SIMPLE_UNET | {
    "in_channels": 3,
    "out_channels": 6,
    "encoder_hid_dim": 32,
    "addition_embed_type": "text",
    "addition_embed_type_num_heads": 2,
}
IF = Tiny(
    "IFPipeline",
    {
        "unet": ("UNet2DConditionModel", PIXEL_UNET),
        "scheduler": (NOISING[0], NOISING[1] | {"thresholding": True}),
        "text_encoder": T5,
    },
    {"height": 8, "width": 8, "guidance_scale": 3.0} | NATIVE,
    unguided=UNGUIDED,
    empty=("safety_checker", "feature_extractor", "watermarker"),
    settings={"requires_safety_checker": False},
)
IF_UPSCALE = IF.components | {
    "unet": ("UNet2DConditionModel", PIXEL_UNET | {"in_channels": 6, "class_embed_type": "timestep"}),
    "image_noising_scheduler": NOISING,
}
IF_PICTURE = (64, 64)  # it takes nothing smaller

PIPELINES = {
    "kandinsky22": KANDINSKY22,
    "kandinsky22_img2img": replace(
        KANDINSKY22,
        pipeline="KandinskyV22Img2ImgCombinedPipeline",
        sampling=SIZE | GUIDED | STRENGTH,
        conditions=IMAGE,
    ),
    "kandinsky22_inpaint": replace(
        KANDINSKY22,
        pipeline="KandinskyV22InpaintCombinedPipeline",
        components=KANDINSKY22.components | {"unet": ("UNet2DConditionModel", DECODER | {"in_channels": 9})},
        conditions=MASKED,
    ),
    "kandinsky21": KANDINSKY21,
    "kandinsky21_img2img": replace(
        KANDINSKY21,
        pipeline="KandinskyImg2ImgCombinedPipeline",
        sampling=SIZE | GUIDED | STRENGTH,
        conditions=IMAGE,
    ),
    "kandinsky21_inpaint": replace(
        KANDINSKY21,
        pipeline="KandinskyInpaintCombinedPipeline",
        components=KANDINSKY21.components | {"unet": ("UNet2DConditionModel", DECODER_21 | {"in_channels": 9})},
        conditions=MASKED,
    ),
    "kandinsky3": KANDINSKY3,
    "kandinsky3_img2img": replace(
        KANDINSKY3,
        pipeline="Kandinsky3Img2ImgPipeline",
        sampling={"guidance_scale": 3.0, "pipeline_args": {"strength": 0.75}} | NATIVE,
        conditions={"image": (64, 64)},
        own_rows=True,
        slow=True,
    ),
    "deepfloyd_if": IF,
    "deepfloyd_if_img2img": replace(
        IF,
        pipeline="IFImg2ImgPipeline",
        sampling={"guidance_scale": 3.0, "pipeline_args": {"strength": 0.75}} | NATIVE,
        conditions={"image": IF_PICTURE},
    ),
    "deepfloyd_if_inpaint": replace(
        IF,
        pipeline="IFInpaintingPipeline",
        sampling={"guidance_scale": 3.0} | NATIVE,
        conditions={"image": IF_PICTURE, "mask_image": IF_PICTURE},
    ),
    "deepfloyd_if_upscale": replace(
        IF, pipeline="IFSuperResolutionPipeline", components=IF_UPSCALE, conditions={"image": (4, 4)}
    ),
    "deepfloyd_if_upscale_img2img": replace(
        IF,
        pipeline="IFImg2ImgSuperResolutionPipeline",
        components=IF_UPSCALE,
        sampling={"guidance_scale": 3.0, "pipeline_args": {"strength": 0.75}} | NATIVE,
        conditions={"image": (4, 4), "original_image": IF_PICTURE},
    ),
    "deepfloyd_if_upscale_inpaint": replace(
        IF,
        pipeline="IFInpaintingSuperResolutionPipeline",
        components=IF_UPSCALE,
        sampling={"guidance_scale": 3.0} | NATIVE,
        conditions={"image": (4, 4), "original_image": IF_PICTURE, "mask_image": IF_PICTURE},
    ),
}
