"""Autoregressive image generators as policies: each code (token) of an image is a decision.

    image_token_model   `ImageTokenModel`, the interface that a model implements; pixels and PIL images
    janus               Janus and Janus-Pro: codes with separate embeddings and head
    emu3                Emu3: codes among the text tokens, rows that end with a forced token
    vq_causal_lm        any causal language model of transformers with a VQModel of diffusers, in one folder
    codecs              codes to images where the language model has no decoder
    code_snippets       building blocks of the code in a model card
    load_model          from a configuration to an `ImageTokenModel`
    forward             prompts and codes through the language model, with a cache or in one pass
    image_token_policy  `ImageTokenPolicy`

Log-probabilities, sampling and guidance are those of `mmrl.tokens`.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {"ImageTokenModel": "image_token_model", "ImageTokenPolicy": "image_token_policy"}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
