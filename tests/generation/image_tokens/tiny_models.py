"""Tiny token image generators of real classes, random but stirred: different prompts give different pictures."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import VQModel
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from mmrl.generation.image_tokens.codecs import VQModelCodec
from mmrl.generation.image_tokens.next_scale_lm import NextScaleLM, NextScaleSpec
from mmrl.generation.image_tokens.vq_causal_lm import LANGUAGE_MODEL, VQCausalLM, VQCausalLMSpec
from tests.understanding.tiny_vlms.words import TEXT, byte_tokenizer, marks, stir

CODES = 20
VQ = dict(base_channels=8, num_res_blocks=1)
FAMILIES = ("janus", "emu3", "composite", "scales")
"""Grids of 3×3 codes, but of 2×3 where rows and columns may differ; `scales` draws 1×1, 2×2 and 2×3 codes at once."""


def build(name: str, folder: Path) -> Path:
    """A folder that `policy.model` can name."""
    {"janus": _janus, "emu3": _emu3, "composite": _composite, "scales": _scales}[name](folder)
    return folder


def _janus(folder: Path) -> None:
    named = {"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
    words = byte_tokenizer("<s>", "</s>", "<pad>", [], named)
    words.padding_side = "left"
    config = JanusConfig(
        text_config={"model_type": "llama", **TEXT, **marks(words)},
        vision_config=dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=12, patch_size=4)
        | dict(projection_dim=32, num_image_tokens=9),
        vq_config=dict(embed_dim=8, num_embeddings=CODES, latent_channels=8, base_channels=32, num_res_blocks=1)
        | dict(channel_multiplier=(1, 1, 1), projection_dim=32, image_token_embed_dim=32),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    model = JanusForConditionalGeneration(config)
    stir(model)
    model.generation_config = GenerationConfig(
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        guidance_scale=5.0,
        generation_kwargs={"boi_token_id": words.convert_tokens_to_ids("<boi>")},
    )
    model.save_pretrained(folder)
    seen = JanusImageProcessor(size={"height": 12, "width": 12}, min_size=4)
    JanusProcessor(seen, words, chat_template=_CHAT, num_image_tokens=9).save_pretrained(folder)


_CHAT = "{% for m in messages %}<s>User: {{ m.content[0].text }}{% endfor %} Assistant:"


def _emu3(folder: Path) -> None:
    visual = [f"<|visual token {number:06d}|>" for number in range(CODES)]
    named = {
        "image_token": "<image>",
        "boi_token": "<|image start|>",
        "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>",
        "eof_token": "<|extra_201|>",
    }
    words = byte_tokenizer("<s>", "</s>", "<pad>", ["<|extra_200|>", *visual], named)
    words.padding_side = "left"
    config = Emu3Config(
        text_config={**{k: v for k, v in TEXT.items() if k != "head_dim"}, **marks(words)},
        vq_config=dict(codebook_size=CODES, base_channels=32, channel_multiplier=(1, 1, 1, 1), num_res_blocks=1)
        | dict(hidden_size=32, attn_resolutions=(3,)),
        vocabulary_map=words.get_vocab(),
    )
    model = Emu3ForConditionalGeneration(config)
    stir(model)
    model.save_pretrained(folder)
    seen = Emu3ImageProcessor(min_pixels=64, max_pixels=4096)
    Emu3Processor(seen, words).save_pretrained(folder)


def _composite(folder: Path) -> None:
    words, model, codec = _parts(more_tokens=3)
    start = words.convert_tokens_to_ids("<picture>")
    family = VQCausalLM(model, words, codec, VQCausalLMSpec(2, 3, first_code=len(words), start=start))
    model.save_pretrained(folder / LANGUAGE_MODEL)
    family.save_other_files(folder)


def _scales(folder: Path) -> None:
    grids = ((1, 1), (2, 2), (2, 3))
    words, model, codec = _parts(more_tokens=11)
    spec = NextScaleSpec(2, 3, len(words), words.convert_tokens_to_ids("<picture>"), len(words) + CODES, grids)
    model.save_pretrained(folder / LANGUAGE_MODEL)
    NextScaleLM(model, words, codec, spec).save_other_files(folder)


def _parts(more_tokens: int) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM, VQModelCodec]:
    words: PreTrainedTokenizerFast = byte_tokenizer("<s>", "</s>", "<pad>", ["<picture>"])
    config = LlamaConfig(**{**TEXT, **marks(words), "vocab_size": len(words) + CODES + more_tokens})
    model = LlamaForCausalLM(config)
    stir(model)
    vae = VQModel(block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2,
                  up_block_types=("UpDecoderBlock2D",) * 2, num_vq_embeddings=CODES, norm_num_groups=4)  # fmt: skip
    stir(vae)
    return words, model, VQModelCodec(vae)


def size_of(name: str) -> tuple[int, int] | None:
    """Emu3 draws many sizes."""
    return (16, 24) if name == "emu3" else None


def seeded() -> torch.Generator:
    """Always the same."""
    return torch.Generator().manual_seed(0)
