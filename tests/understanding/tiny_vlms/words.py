"""Parts of every tiny family: a byte-level tokenizer, large random weights, towers of two layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

SIDE = 32  # of a picture, in pixels
PATCH = 8  # of a vision tower, in pixels
TOWER = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
TEXT = TOWER | dict(num_key_value_heads=2, head_dim=8, max_position_embeddings=1024)


def byte_tokenizer(
    bos: str, eos: str, pad: str, further: list[str], named: Mapping[str, str] = MappingProxyType({})
) -> PreTrainedTokenizerFast:
    """Each byte is a token; special tokens follow them. `named` become attributes, as `tokenizer.image_token`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([bos, eos, pad, *further, *named.values()])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        **({"extra_special_tokens": dict(named)} if named else {}),
    )


def marks(words: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the arguments of a text configuration for its vocabulary."""
    return dict(
        vocab_size=len(words),
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )


def stir(network: nn.Module) -> None:
    """Weights so large that different inputs give different outputs, equal for equal networks."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weights in network.named_parameters():
            noise = torch.randn(weights.shape, generator=generator)
            if weights.ndim > 1:
                weights.copy_(noise * (1.2 / math.sqrt(weights[0].numel())))
            else:
                weights.copy_(noise * 0.1 + name.endswith("weight"))  # 1 for norms
