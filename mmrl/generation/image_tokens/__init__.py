"""Generators that draw a picture token by token, as policies: each token of a picture is a decision.

    family      what a family of models must say of itself; everything else is written once
    janus       Janus and Janus-Pro: codes with embeddings and a head of their own
    emu3        Emu3: codes among the words, rows that end with a token
    composite   any causal language model of transformers beside a VQModel of diffusers, in one folder
    loading     from a configuration to one of them
    reading     prompts and codes through the language model, with a cache or whole
    pictures    pixels and PIL images
    policy      `ImageTokenPolicy`

Where it fits: beside `PipelinePolicy`; log-probabilities, sampling and guidance are those of `mmrl.tokens`.
"""

from __future__ import annotations

from mmrl.lazy import exports

__all__ = ["ImageTokenPolicy"]

__getattr__ = exports(__name__, {"ImageTokenPolicy": "image_token_policy"})
