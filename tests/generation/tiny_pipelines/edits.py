"""Tiny image pipelines of flow models that take images: edit, inpaint, control, as data."""

from __future__ import annotations

from dataclasses import replace

from tests.generation.tiny_pipelines.components import (
    CAUSAL_VAE,
    FLOW,
    QWEN2_VL_PROCESSOR,
    QWEN3_VL,
    QWEN3_VL_PROCESSOR,
    Component,
)
from tests.generation.tiny_pipelines.factory import Tiny
from tests.generation.tiny_pipelines.flow_images import PIPELINES as FLOW_IMAGES
from tests.generation.tiny_pipelines.flow_images import UNGUIDED
from tests.generation.tiny_pipelines.flux_images import PIPELINES as FLUX_IMAGES
from tests.generation.tiny_pipelines.single_stream import PIPELINES as SINGLE_STREAM

PICTURE, CONTROL = {"image": (16, 16)}, {"control_image": (16, 16)}
MASKED = {**PICTURE, "mask_image": (16, 16)}
STRENGTH = {"strength": 0.5}  # two of four steps, one of two: at 0.9 they would begin with noise alone

PIPELINES: dict[str, Tiny] = {}


def _args(tiny: Tiny, **pipeline_args: object) -> dict[str, object]:
    """The sampling of a pipeline with further arguments."""
    return {**tiny.sampling, "pipeline_args": {**tiny.sampling.get("pipeline_args", {}), **pipeline_args}}


def _part(tiny: Tiny, part: str, kind: str | None = None, **config: object) -> Component:
    """A component with another configuration, or of another class."""
    name, known = tiny.components[part]
    return kind or name, {**known, **config}


SD3 = FLOW_IMAGES["sd3"]
PIPELINES["sd3_img2img"] = replace(
    SD3, pipeline="StableDiffusion3Img2ImgPipeline", conditions=PICTURE, sampling=_args(SD3, **STRENGTH)
)
PIPELINES["sd3_inpaint"] = replace(
    SD3,
    pipeline="StableDiffusion3InpaintPipeline",
    components={
        **SD3.components,
        "transformer": _part(SD3, "transformer", in_channels=16, out_channels=16),
        "vae": _part(SD3, "vae", latent_channels=16),
    },
    conditions=MASKED,
    sampling=_args(SD3, **STRENGTH),
)
PIPELINES["sd3_controlnet"] = replace(
    SD3,
    pipeline="StableDiffusion3ControlNetPipeline",
    components={**SD3.components, "controlnet": _part(SD3, "transformer", "SD3ControlNetModel", num_layers=1)},
    conditions=CONTROL,
)

FLUX = FLUX_IMAGES["flux"]
TRUE_CFG = {"negative_prompt": "blurry"}
PIPELINES["flux_kontext"] = replace(
    FLUX,
    pipeline="FluxKontextPipeline",
    conditions=PICTURE,
    sampling=_args(FLUX, true_cfg_scale=3.0, max_area=256, _auto_resize=False) | TRUE_CFG,
    unguided=_args(FLUX, max_area=256, _auto_resize=False),
)
PIPELINES["flux_fill"] = replace(
    FLUX,
    pipeline="FluxFillPipeline",
    components={**FLUX.components, "transformer": _part(FLUX, "transformer", in_channels=48, out_channels=16)},
    conditions=MASKED,
)
PIPELINES["flux_control"] = replace(
    FLUX,
    pipeline="FluxControlPipeline",
    components={**FLUX.components, "transformer": _part(FLUX, "transformer", in_channels=32, out_channels=16)},
    conditions=CONTROL,
)
PIPELINES["flux_img2img"] = replace(
    FLUX,
    pipeline="FluxImg2ImgPipeline",
    conditions=PICTURE,
    sampling=_args(FLUX, true_cfg_scale=3.0, **STRENGTH) | TRUE_CFG,
    unguided=_args(FLUX, **STRENGTH),
)
PIPELINES["flux_inpaint"] = replace(PIPELINES["flux_img2img"], pipeline="FluxInpaintPipeline", conditions=MASKED)
PIPELINES["flux_controlnet"] = replace(
    FLUX,
    pipeline="FluxControlNetPipeline",
    components={**FLUX.components, "controlnet": _part(FLUX, "transformer", "FluxControlNetModel")},
    conditions=CONTROL,
    sampling=_args(FLUX, true_cfg_scale=3.0) | TRUE_CFG,
    unguided=_args(FLUX),
)
PIPELINES["sd3_controlnet_inpaint"] = replace(
    SD3,
    pipeline="StableDiffusion3ControlNetInpaintingPipeline",
    components={
        **SD3.components,
        "controlnet": _part(SD3, "transformer", "SD3ControlNetModel", num_layers=1, extra_conditioning_channels=1),
    },
    conditions={**CONTROL, "control_mask": (16, 16)},
)
PIPELINES["sd3_pag_img2img"] = replace(
    FLOW_IMAGES["sd3_pag"],
    pipeline="StableDiffusion3PAGImg2ImgPipeline",
    conditions=PICTURE,
    sampling=_args(SD3, **STRENGTH),
    unguided=_args(SD3, pag_scale=0.0, **STRENGTH) | UNGUIDED,
)
PIPELINES["flux_kontext_inpaint"] = replace(
    PIPELINES["flux_kontext"],
    pipeline="FluxKontextInpaintPipeline",
    conditions={**MASKED, "image_reference": (16, 16)},
)
PIPELINES["flux_control_img2img"] = replace(
    PIPELINES["flux_control"],
    pipeline="FluxControlImg2ImgPipeline",
    conditions={**PICTURE, **CONTROL},
    sampling=_args(FLUX, **STRENGTH),
)
PIPELINES["flux_control_inpaint"] = replace(
    PIPELINES["flux_control_img2img"],
    pipeline="FluxControlInpaintPipeline",
    components={**FLUX.components, "transformer": _part(FLUX, "transformer", in_channels=32, out_channels=16)},
    conditions={**MASKED, **CONTROL},
)
PIPELINES["flux_controlnet_img2img"] = replace(
    PIPELINES["flux_controlnet"],
    pipeline="FluxControlNetImg2ImgPipeline",
    conditions={**PICTURE, **CONTROL},
    sampling=_args(FLUX, **STRENGTH),
    unguided=None,
)
PIPELINES["flux_controlnet_inpaint"] = replace(
    PIPELINES["flux_controlnet_img2img"],
    pipeline="FluxControlNetInpaintPipeline",
    conditions={**MASKED, **CONTROL},
)
PIPELINES["flux2_edit"] = replace(FLUX_IMAGES["flux2"], conditions={"image": (64, 64)})
PIPELINES["flux2_klein_edit"] = replace(FLUX_IMAGES["flux2_klein"], conditions={"image": (64, 64)})
PIPELINES["flux2_klein_inpaint"] = replace(
    FLUX_IMAGES["flux2_klein"],
    pipeline="Flux2KleinInpaintPipeline",
    conditions={"image": (64, 64), "mask_image": (64, 64), "image_reference": (64, 64)},
)
PIPELINES["flux2_klein_kv"] = replace(
    FLUX_IMAGES["flux2_klein"],
    pipeline="Flux2KleinKVPipeline",
    sampling={key: value for key, value in FLUX_IMAGES["flux2_klein"].sampling.items() if key != "guidance_scale"},
    unguided=None,
)

QWEN = FLOW_IMAGES["qwen_image"]
WIDE, WIDE_CONTROL = {"image": (32, 32)}, {"control_image": (32, 32)}
PIPELINES["qwen_img2img"] = replace(
    QWEN,
    pipeline="QwenImageImg2ImgPipeline",
    conditions=WIDE,
    sampling=_args(QWEN, **STRENGTH),
    unguided=_args(QWEN, true_cfg_scale=1.0, **STRENGTH),
)
PIPELINES["qwen_inpaint"] = replace(
    PIPELINES["qwen_img2img"],
    pipeline="QwenImageInpaintPipeline",
    conditions={**WIDE, "mask_image": (32, 32)},
)
PIPELINES["qwen_controlnet"] = replace(
    QWEN,
    pipeline="QwenImageControlNetPipeline",
    components={
        **QWEN.components,
        "controlnet": _part(QWEN, "transformer", "QwenImageControlNetModel", num_layers=1),
    },
    conditions=WIDE_CONTROL,
)
PIPELINES["qwen_controlnet_inpaint"] = replace(
    QWEN,
    pipeline="QwenImageControlNetInpaintPipeline",
    components={
        **QWEN.components,
        "controlnet": _part(QWEN, "transformer", "QwenImageControlNetModel", num_layers=1, extra_condition_channels=4),
    },
    conditions={**WIDE_CONTROL, "control_mask": (32, 32)},
)

SANA = FLOW_IMAGES["sana"]
PIPELINES["sana_controlnet"] = replace(
    SANA,
    pipeline="SanaControlNetPipeline",
    components={
        **SANA.components,
        "controlnet": _part(SANA, "transformer", "SanaControlNetModel", num_layers=1),
        "scheduler": FLOW,
    },
    conditions=WIDE_CONTROL,
)

Z_IMAGE = SINGLE_STREAM["z_image"]
PIPELINES["z_image_img2img"] = replace(
    Z_IMAGE, pipeline="ZImageImg2ImgPipeline", conditions=PICTURE, sampling=_args(Z_IMAGE, **STRENGTH)
)
PIPELINES["z_image_inpaint"] = replace(
    Z_IMAGE, pipeline="ZImageInpaintPipeline", conditions=MASKED, sampling=_args(Z_IMAGE, **STRENGTH)
)
PIPELINES["z_image_controlnet"] = replace(
    Z_IMAGE,
    pipeline="ZImageControlNetPipeline",
    components={
        **Z_IMAGE.components,
        "controlnet": (
            "ZImageControlNetModel",
            {
                "control_layers_places": [0],
                "control_refiner_layers_places": [0],
                "control_in_dim": 4,
                "dim": 32,
                "n_refiner_layers": 1,
                "n_heads": 2,
                "n_kv_heads": 2,
            },
        ),
    },
    conditions=CONTROL,
)
PIPELINES["z_image_controlnet_inpaint"] = replace(
    PIPELINES["z_image_controlnet"],
    pipeline="ZImageControlNetInpaintPipeline",
    components={
        **Z_IMAGE.components,
        "controlnet": (
            "ZImageControlNetModel",
            {**PIPELINES["z_image_controlnet"].components["controlnet"][1], "control_in_dim": 9},
        ),
    },
    conditions={**MASKED, **CONTROL},
)
PIPELINES["z_image_omni"] = replace(
    Z_IMAGE,
    pipeline="ZImageOmniPipeline",
    components={
        **Z_IMAGE.components,
        "transformer": _part(Z_IMAGE, "transformer", siglip_feat_dim=16, axes_lens=[256, 64, 64]),
        "siglip": (
            "Siglip2VisionModel",
            {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_patches": 16,
                "patch_size": 16,
            },
        ),
        "siglip_processor": ("Siglip2ImageProcessor", {"patch_size": 16, "max_num_patches": 16}),
    },
    conditions={"image": (64, 64)},
    bfloat16=("vae",),
)

CHROMA = FLUX_IMAGES["chroma"]
PIPELINES["chroma_img2img"] = replace(
    CHROMA, pipeline="ChromaImg2ImgPipeline", conditions=PICTURE, sampling=_args(CHROMA, **STRENGTH)
)
COGVIEW4 = FLOW_IMAGES["cogview4"]
PIPELINES["cogview4_control"] = replace(
    COGVIEW4,
    pipeline="CogView4ControlPipeline",
    components={**COGVIEW4.components, "transformer": _part(COGVIEW4, "transformer", in_channels=8)},
    conditions=CONTROL,
)

# These resize every picture to about 1024 x 1024: a deep autoencoder makes few tokens of it
DEEP_VAE = _part(QWEN, "vae", base_dim=2, dim_mult=[1] * 6, temperal_downsample=[False] * 5)
PIPELINES["qwen_edit"] = replace(
    QWEN,
    pipeline="QwenImageEditPipeline",
    components={**QWEN.components, "vae": DEEP_VAE, "processor": QWEN2_VL_PROCESSOR},
    conditions=WIDE,
    sampling=_args(QWEN) | {"height": 64, "width": 64},
    slow=True,
)
PIPELINES["qwen_edit_plus"] = replace(
    PIPELINES["qwen_edit"],
    pipeline="QwenImageEditPlusPipeline",
    components={
        **PIPELINES["qwen_edit"].components,
        "transformer": _part(QWEN, "transformer", zero_cond_t=True),
    },
)
PIPELINES["qwen_edit_inpaint"] = replace(
    PIPELINES["qwen_edit"],
    pipeline="QwenImageEditInpaintPipeline",
    conditions={**WIDE, "mask_image": (32, 32)},
    sampling=_args(QWEN, **STRENGTH) | {"height": 64, "width": 64},
    unguided=_args(QWEN, true_cfg_scale=1.0, **STRENGTH),
)
PIPELINES["qwen_layered"] = replace(
    QWEN,
    pipeline="QwenImageLayeredPipeline",
    components={
        **QWEN.components,
        "vae": (
            DEEP_VAE[0],
            {**DEEP_VAE[1], "input_channels": 4, "z_dim": 8, "latents_mean": [0.0] * 8, "latents_std": [1.0] * 8},
        ),
        "transformer": _part(
            QWEN, "transformer", in_channels=32, out_channels=8, use_additional_t_cond=True, use_layer3d_rope=True
        ),
        "processor": QWEN2_VL_PROCESSOR,
    },
    conditions=WIDE,
    sampling={
        "negative_prompt": "blurry",
        "pipeline_args": {"true_cfg_scale": 3.0, "layers": 2, "cfg_normalize": True},
    },
    unguided={"pipeline_args": {"true_cfg_scale": 1.0, "layers": 2}},
    slow=True,
)
LONGCAT = FLUX_IMAGES["longcat_image"]
PIPELINES["longcat_edit"] = replace(
    LONGCAT,
    pipeline="LongCatImageEditPipeline",
    components={
        **LONGCAT.components,
        "vae": _part(
            LONGCAT,
            "vae",
            block_out_channels=(8,) * 6,
            down_block_types=("DownEncoderBlock2D",) * 6,
            up_block_types=("UpDecoderBlock2D",) * 6,
        ),
    },
    conditions=WIDE,
    sampling={"guidance_scale": 4.5, "negative_prompt": "blurry"},
    slow=True,
)
FIBO = FLUX_IMAGES["bria_fibo"]
PIPELINES["bria_fibo_edit"] = replace(
    FIBO,
    pipeline="BriaFiboEditPipeline",
    conditions={"image": (64, 64), "mask": (64, 64)},
    prompts=('{"edit_instruction": "a red circle"}', '{"edit_instruction": "a big blue square"}'),
)
KANDINSKY5 = SINGLE_STREAM["kandinsky5_image"]
PIPELINES["kandinsky5_edit"] = replace(
    KANDINSKY5,
    pipeline="Kandinsky5I2IPipeline",
    components={
        **KANDINSKY5.components,
        "transformer": _part(KANDINSKY5, "transformer", visual_cond=True),
    },
    conditions=WIDE,
)
HUNYUAN_IMAGE = FLOW_IMAGES["hunyuan_image"]
PIPELINES["hunyuan_image_refiner"] = replace(
    HUNYUAN_IMAGE,
    pipeline="HunyuanImageRefinerPipeline",
    components={
        **{part: HUNYUAN_IMAGE.components[part] for part in ("scheduler", "text_encoder", "guider")},
        "transformer": _part(
            HUNYUAN_IMAGE,
            "transformer",
            in_channels=16,
            out_channels=8,
            patch_size=(1, 1, 1),
            rope_axes_dim=(4, 2, 2),
            text_embed_2_dim=None,
            guidance_embeds=True,
        ),
        "vae": (
            "AutoencoderKLHunyuanImageRefiner",
            {
                "latent_channels": 4,
                "block_out_channels": (8, 8),
                "layers_per_block": 1,
                "spatial_compression_ratio": 2,
                "temporal_compression_ratio": 1,
            },
        ),
    },
    conditions=PICTURE,
    tokenizers=("tokenizer",),
    attributes={"tokenizer_max_length": 16},
    heavy=True,
)
PIPELINES["joy_image_edit"] = Tiny(
    "JoyImageEditPipeline",
    {
        "transformer": (
            "JoyImageEditTransformer3DModel",
            {
                "in_channels": 4,
                "hidden_size": 32,
                "num_attention_heads": 2,
                "text_dim": 16,
                "mlp_width_ratio": 2.0,
                "num_layers": 1,
                "rope_dim_list": [8, 4, 4],
            },
        ),
        "scheduler": ("FlowMatchEulerDiscreteScheduler", {"shift": 4.0}),
        "vae": (
            "AutoencoderKLWan",
            {
                **CAUSAL_VAE,
                "base_dim": 2,
                "z_dim": 4,
                "dim_mult": [1] * 7,
                "temperal_downsample": [False] * 6,
                "latents_mean": [0.0] * 4,
                "latents_std": [1.0] * 4,
                "scale_factor_spatial": 64,
            },
        ),
        "text_encoder": ("Qwen3VLForConditionalGeneration", QWEN3_VL),
        "processor": QWEN3_VL_PROCESSOR,
    },
    {"guidance_scale": 4.0, "negative_prompt": "blurry"},
    unguided=UNGUIDED,
    conditions=WIDE,
    slow=True,
)
