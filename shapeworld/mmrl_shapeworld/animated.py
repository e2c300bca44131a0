"""The embedded text-to-video pipeline: an AnimateDiff of 1.2 M parameters for clips of five frames of 32×32 pixels.

Real diffusers and transformers classes, made small: the text-to-image UNet of `mmrl_shapeworld.unets` with a motion
module behind each of its blocks, as AnimateDiff has it (arXiv:2307.04725), in which every pixel looks at itself in the
other frames. Ask for five frames: `pipe("a red circle moves left", num_frames=5)`.
"""

from __future__ import annotations

import torch
from diffusers import (
    AnimateDiffPipeline,
    AutoencoderKL,
    DDIMScheduler,
    MotionAdapter,
    UNet2DConditionModel,
    UNetMotionModel,
)
from transformers import CLIPTextModel, CLIPTokenizer

TOKENS = 14
"""Tokens of the longest prompt, two things that move, with its start and end tokens."""


def denoiser(base: UNet2DConditionModel) -> UNetMotionModel:
    """The UNet of `base` with motion modules, which begin as if they were not there."""
    widths = base.config.block_out_channels
    adapter = MotionAdapter(
        block_out_channels=widths,
        motion_layers_per_block=base.config.layers_per_block,
        motion_num_attention_heads=4,
        motion_norm_num_groups=base.config.norm_num_groups,
        motion_max_seq_length=8,
    )
    return UNetMotionModel.from_unet2d(base, adapter)


def longer(
    encoder: CLIPTextModel, tokenizer: CLIPTokenizer, tokens: int = TOKENS
) -> tuple[CLIPTextModel, CLIPTokenizer]:
    """The same words for longer texts: places past the known ones begin as the last known one."""
    config = encoder.config.__class__.from_dict({**encoder.config.to_dict(), "max_position_embeddings": tokens})
    grown, state = CLIPTextModel(config), encoder.state_dict()
    places = next(name for name in state if name.endswith("position_embedding.weight"))
    known = state[places]
    state[places] = torch.cat([known, known[-1:].expand(tokens - len(known), -1)])
    grown.load_state_dict({name: tensor for name, tensor in state.items() if not name.endswith("position_ids")})
    tokenizer.model_max_length = tokens
    return grown, tokenizer


def build(
    tokenizer: CLIPTokenizer,
    encoder: CLIPTextModel,
    vae: AutoencoderKL,
    unet: UNetMotionModel,
    scheduler: DDIMScheduler,
) -> AnimateDiffPipeline:
    """A pipeline of these parts. Its motion modules are in the UNet, not in an adapter beside it."""
    return AnimateDiffPipeline(
        vae=vae, text_encoder=encoder, tokenizer=tokenizer, unet=unet, motion_adapter=None, scheduler=scheduler
    )
