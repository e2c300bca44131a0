"""Autoregressive image generators as policies: each code (token) of an image is a decision.

    image_token_model   `ImageTokenModel`, the interface that a model implements; pixels and the code of a model card
    vq_causal_lm        any causal language model of transformers with an image codec, in one folder
    next_scale_lm       the same, drawn scale by scale
    codecs              the codecs of such folders: a VQModel of diffusers, or a table of patches
    picture_decoder     the decoder of a codec as a model that is trained, and its discriminator
    forward             prompts and codes through the language model, with a cache or in one pass
    scale_forward       prompts and whole scales through it
    image_token_policy  `ImageTokenPolicy`

Every other module is a model of transformers (`mmrl.config.policy.IMAGE_TOKEN_MODELS`).

Log-probabilities, sampling and guidance are those of `mmrl.tokens`.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {"ImageTokenModel": "image_token_model", "ImageTokenPolicy": "image_token_policy"}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
