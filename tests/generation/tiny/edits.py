"""Tiny image pipelines of flow models that take images: edit, inpaint, control, as data."""

from __future__ import annotations

from dataclasses import replace

from tiny.components import Component
from tiny.factory import Tiny
from tiny.flow_images import PIPELINES as FLOW_IMAGES

PICTURE, CONTROL = {"image": (16, 16)}, {"control_image": (16, 16)}
MASKED = {**PICTURE, "mask_image": (16, 16)}
STRENGTH = {"strength": 0.9}

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

FLUX = FLOW_IMAGES["flux"]
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
