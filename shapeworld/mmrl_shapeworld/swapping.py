"""The embedded pipeline that edits clips: a Wan VACE of one million parameters for five frames of 32×32 pixels.

Real diffusers classes, made small (VACE, arXiv:2503.07598): a clip, masks of it and reference pictures are the context
of a transformer over 96 tokens. Its autoencoder does not compress time, so that a mask of any one frame is seen, and
its kernels read the present frame alone. Texts say nothing: the text encoder is the silent T5 of
`mmrl_shapeworld.models`. Ask for one frame fewer than are in the clip: diffusers adds one where time is not compressed.
"""

from __future__ import annotations

from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanVACEPipeline, WanVACETransformer3DModel
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from transformers import PreTrainedTokenizerBase, T5EncoderModel

from mmrl_shapeworld.models import TEXT_WIDTH

CHANNELS = 8
"""Channels of the latents."""
SCALE = 4
"""Pixels of a side of a latent pixel."""


def autoencoder() -> AutoencoderKLWan:
    """F frames of 32×32 RGB to a latent of 8×F×8×8, untrained; the weights of kernels for earlier frames are zero."""
    vae = AutoencoderKLWan(
        base_dim=12,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, False],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
        scale_factor_temporal=1,
        scale_factor_spatial=SCALE,
    )
    for module in vae.modules():
        if isinstance(module, WanCausalConv3d) and module.kernel_size[0] > 1:
            module.weight.data[:, :, :-1] = 0
    return vae


def transformer() -> WanVACETransformer3DModel:
    """Return four blocks, and three beside them that read the context: one million parameters, untrained."""
    return WanVACETransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=24,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=2 * TEXT_WIDTH,
        freq_dim=64,
        ffn_dim=256,
        num_layers=4,
        rope_max_seq_len=32,
        vace_layers=[0, 1, 2],
        vace_in_channels=2 * CHANNELS + SCALE**2,
    )


def build(
    tokenizer: PreTrainedTokenizerBase,
    encoder: T5EncoderModel,
    vae: AutoencoderKLWan,
    denoiser: WanVACETransformer3DModel,
) -> WanVACEPipeline:
    """A pipeline of these parts."""
    return WanVACEPipeline(
        tokenizer=tokenizer,
        text_encoder=encoder,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0),
        transformer=denoiser,
    )
