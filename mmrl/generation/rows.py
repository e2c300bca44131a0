"""How many outputs of one sample are asked for, where the sample has pictures.

Most pipelines take one prompt, its pictures and a number of outputs. Those that take no number, and those named here,
which ignore it or look up a picture for every row, get the prompt and the pictures once a row. That cannot be the rule,
for to others several pictures are all references of every row (Flux.2, Qwen-Image-Edit-Plus). Read in the source of
diffusers 0.42.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

COUNTS = ("num_images_per_prompt", "num_videos_per_prompt")
"""What pipelines call the number of outputs of one prompt."""

PICTURE_PER_ROW = frozenset(
    {
        "AnimateDiffVideoToVideoControlNetPipeline",
        "AnimateDiffVideoToVideoPipeline",
        "CogVideoXFunControlPipeline",
        "CogVideoXImageToVideoPipeline",
        "CogVideoXVideoToVideoPipeline",
        "ConsisIDPipeline",
        "Cosmos2VideoToWorldPipeline",
        "Cosmos2_5_TransferPipeline",
        "HunyuanImageRefinerPipeline",
        "HunyuanSkyreelsImageToVideoPipeline",
        "HunyuanVideoFramepackPipeline",
        "HunyuanVideoImageToVideoPipeline",
        "KandinskyImg2ImgCombinedPipeline",
        "Kandinsky5I2IPipeline",
        "LucyEditPipeline",
        "PIAPipeline",
        "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3PAGImg2ImgPipeline",
        "StableDiffusionInstructPix2PixPipeline",
        "StableDiffusionLatentUpscalePipeline",
        "StableDiffusionXLInstructPix2PixPipeline",
        "StableVideoDiffusionPipeline",
        "WanVideoToVideoPipeline",
        "ZImageControlNetInpaintPipeline",
    }
)

PICTURE_FOR_ALL = frozenset(
    {
        "ChronoEditPipeline",
        "LTX2ImageToVideoPipeline",
        "LTXImageToVideoPipeline",
        "SanaImageToVideoPipeline",
    }
)
"""Classes whose one picture serves every row, each with a prompt of its own."""

WITH_ALPHA = frozenset({"QwenImageLayeredPipeline"})
"""Classes whose pictures have four channels, and that convert none."""

ONE_GENERATOR = frozenset(
    {
        "Cosmos2_5_PredictBasePipeline",
        "HeliosPipeline",
        "LTX2ConditionPipeline",
        "LTX2ImageToVideoPipeline",
        "LTXImageToVideoPipeline",
    }
)
"""Classes that take no list of random generators: one draws the noise of all rows, in order."""


@dataclass(frozen=True)
class Layout:
    """How one call asks for several rows."""

    prompts: int
    """How often the prompt is handed over."""
    count: str | None = None
    """The argument that takes the number of rows; None: there are as many rows as prompts."""
    pictures: int | None = None
    """How often each picture is handed over; None: by itself, not in a list."""


def lay_out(pipeline: str, arguments: Container[str], rows: int, pictured: bool) -> Layout:
    """For a class of this name, whose call takes these arguments; `pictured`: samples give more than a prompt."""
    if not pictured or pipeline in PICTURE_FOR_ALL:
        return Layout(prompts=rows)
    count = next((name for name in COUNTS if name in arguments), None)
    if count is None or pipeline in PICTURE_PER_ROW:
        return Layout(prompts=rows, pictures=rows)
    return Layout(prompts=1, count=count)
