"""Qwen2.5-VL-3B with random weights, at its published sizes, and what a step of it costs at the least.

Nothing is downloaded: the processor has a made-up tokenizer, with a word of letters for each token of the model.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from itertools import count, islice, product
from typing import Any

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from mmrl_shapeworld import vlm_model as shapes

PATCHES = {"patch_size": 14, "temporal_patch_size": 2}
TEXT_3B = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128_000,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [16, 24, 24]},
}
VISION_3B = PATCHES | {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "spatial_merge_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 2,
}
"""The sizes of Qwen/Qwen2.5-VL-3B-Instruct."""
TEXT_SMALL = TEXT_3B | {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]},
}
VISION_SMALL = VISION_3B | {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "out_hidden_size": 128,
    "fullatt_block_indexes": [1],
}
BF16_FLOPS, BYTES_A_SECOND = 989e12, 3.35e12
"""An H100 SXM's dense bf16 operations and bytes of its memory a second."""


def build(
    text: dict[str, Any], vision: dict[str, Any], side: int, device: torch.device, dtype: torch.dtype
) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
    """Return the model, its weights drawn on the device, and a processor that leaves pictures of `side` pixels be."""
    words = tokenizer(text["vocab_size"])
    ids = {special: words.convert_tokens_to_ids(special) for special in shapes.SPECIAL}
    config = Qwen2_5_VLConfig(
        text_config=text | {"bos_token_id": None, "eos_token_id": ids[shapes.END], "pad_token_id": ids[shapes.PAD]},
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with device:
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=dtype)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=ids[shapes.END],
        pad_token_id=ids[shapes.PAD],
    )
    shared = PATCHES | {"merge_size": 2, "size": {"shortest_edge": side**2, "longest_edge": side**2}}
    processor = Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**shared),
        words,
        Qwen2VLVideoProcessor(**shared, do_sample_frames=False),
        chat_template=shapes.CHAT_TEMPLATE,
    )
    return model, processor


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of exactly that many tokens: words of letters after the bytes and special tokens."""
    spelled = ("".join(each) for length in count(2) for each in product(string.ascii_lowercase, repeat=length))
    fixed = [" red", " blue", " green", *shapes.ROLES]
    needed = size - len(shapes.SPECIAL) - 256 - len(fixed)
    found = shapes.exact_tokenizer([*fixed, *islice(spelled, needed)], shapes.ROLES, r" ?[A-Za-z]+| ?[^A-Za-z0-9]")
    assert len(found) == size, f"the tokenizer has {len(found)} tokens, expected {size}"
    return found


@dataclass(frozen=True)
class Cost:
    """The least cost of the parts of a step, where each prompt is computed once for all of its answers.

    A product with a weight takes 2 operations a parameter and token. The base is frozen, so a backward pass computes
    gradients of activations alone, as many operations as the forward pass; those of adapters' weights come on top.
    """

    prompt_flops: float  # prompts and their pictures, forward
    update_flops: float  # forward and backward of prompts and answers, without recomputation
    decode_bytes: float  # of weights, and of keys and values, read in all steps of decoding

    @property
    def decode_seconds(self) -> float:
        """The least time for decoding."""
        return self.decode_bytes / BYTES_A_SECOND


def cost(model: nn.Module, prompts: int, answers: int, prompt: int, tokens: int, patches: int) -> Cost:
    """Count for `prompts` prompts of `prompt` tokens (`patches` patches of pictures in each), `answers` answers each.

    `model` has its adapters.
    """
    config = model.config.text_config
    sizes = {"base": 0, "adapters": 0, "tower": 0}
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            sizes["adapters"] += parameter.numel()
        elif "visual" in name:
            sizes["tower"] += parameter.numel()
        elif "embed_tokens" not in name and "lm_head" not in name:
            sizes["base"] += parameter.numel()
    head = config.vocab_size * config.hidden_size
    written = prompts * answers * tokens
    width = config.hidden_size * config.num_hidden_layers

    def attention(queries: int, keys: float) -> float:  # two products
        return 4.0 * queries * keys * width

    tower = 2.0 * sizes["tower"] * prompts * patches
    language = 2.0 * (sizes["base"] + sizes["adapters"])
    reading = language * prompts * prompt + attention(prompts * prompt, prompt / 2)
    forward = reading + language * written + attention(written, prompt + tokens / 2) + 2.0 * head * written
    of_adapters = 2.0 * sizes["adapters"] * (prompts * prompt + written)
    weights = 2 * (sizes["base"] + sizes["adapters"] + head)  # bf16
    kv_width = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    kept = 2 * 2 * kv_width * config.num_hidden_layers * prompts * (prompt + answers * tokens / 2)
    return Cost(
        prompt_flops=tower + reading,
        update_flops=tower + 2 * forward + of_adapters,
        decode_bytes=tokens * (weights + kept),
    )
