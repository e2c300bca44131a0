"""How many outputs of one sample are asked for, where the sample has pictures.

Most pipelines take one prompt, its pictures and a number of outputs. Those that take no number, and those named here,
which ignore it or look up a picture for every row, get the prompt and the pictures once a row. That cannot be the rule,
for to others several pictures are all references of every row (Flux.2, Qwen-Image-Edit-Plus). Read in the source of
diffusers 0.42.
"""

from __future__ import annotations

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
        "CosmosVideoToWorldPipeline",
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

ONE_GENERATOR = frozenset(
    {
        "Cosmos2_5_PredictBasePipeline",
        "LTX2ConditionPipeline",
        "LTX2ImageToVideoPipeline",
        "LTXImageToVideoPipeline",
        "WanVACEPipeline",
    }
)
"""Classes that take no list of random generators: one draws the noise of all rows, in order."""
