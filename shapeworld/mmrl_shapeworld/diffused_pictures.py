"""The shipped generator of image tokens with a diffusion decoder, which draws what the codes say.

    policy: {kind: image_tokens, model: shapeworld, architecture: "mmrl_shapeworld.diffused_pictures:DiffusedShapes"}

Pictures are encoded by the shipped table of patches, so that the generator's codes mean what they meant. A UNet of
diffusers draws the picture of a grid in four steps. It has only seen grids of true pictures
(`tools.shapeworld_pretrain.diffusion_decoder`): what it makes of codes that do not go together, it was never taught.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import DDIMScheduler, UNet2DModel
from safetensors.torch import load_file
from torch import nn

from mmrl.generation.image_tokens.codecs import PATCHES, DiffusionCodec, ImageCodec, load_codec
from mmrl.generation.image_tokens.diffusion_decoder import FOLDER, DiffusionDecoder
from mmrl.generation.image_tokens.vq_causal_lm import VQCausalLM
from mmrl_shapeworld.image_ar import CODES, GRID, PATCH
from mmrl_shapeworld.shipped_models import DIFFUSION_DECODER

CHANNELS, STEPS = 16, 4
"""The channels of a code's embedding, and the steps of a picture."""


def unet() -> UNet2DModel:
    """Return an untrained UNet of 0.46 M parameters: convolutions on the grid of codes and on half of it."""
    return UNet2DModel(
        sample_size=GRID,
        in_channels=3 * PATCH**2 + CHANNELS,
        out_channels=3 * PATCH**2,
        block_out_channels=(32, 48),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        add_attention=False,
        norm_num_groups=8,
    )


def embeddings() -> nn.Embedding:
    """Return untrained embeddings of the codes."""
    return nn.Embedding(CODES, CHANNELS)


def scheduler() -> DDIMScheduler:
    """Return the noise schedule; the model predicts the picture, and the last step arrives at what it predicts."""
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="sample",
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
        clip_sample=False,
    )


class DiffusedShapes(VQCausalLM):
    """The shipped generator with such a decoder; a checkpoint's folder has its own copy of it."""

    @classmethod
    def codec_of(cls, folder: Path, device: torch.device) -> ImageCodec:
        if (folder / FOLDER).is_dir():
            return load_codec(folder, device)
        table = load_file(folder / PATCHES)["patches"].to(device)
        return DiffusionCodec(table, DiffusionDecoder.from_folder(DIFFUSION_DECODER, device))
