"""The embedded autoregressive generator: a codebook of patches, and a Llama of transformers made small.

A 32×32 picture is 64 codes on an 8×8 grid, which the language model writes after a caption, row by row; a code is a
square of 4×4 pixels. The folder is one that `mmrl.generation.image_tokens` reads; `tools.shapeworld_pretrain.image_ar`
trains it.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmrl_shapeworld.captions import NUMBERS
from mmrl_shapeworld.scenes import COLOURS, SHAPES

GRID, PATCH, CODES = 8, 4, 512
WIDTH, LAYERS, HEADS, INNER = 128, 4, 4, 352
PAD, START, PICTURE, UNKNOWN = SPECIAL = ("<pad>", "<s>", "<picture>", "<unk>")
WORDS = (
    *(NUMBERS.values()),
    *("small", "large"),
    *COLOURS,
    *SHAPES,
    *(f"{shape}s" for shape in SHAPES),
    *("and", "left", "right", "of", "above", "below"),
)
FIRST_CODE = len(SPECIAL) + len(WORDS)
"""The token that stands for code 0; the others follow it."""


def tokenizer() -> PreTrainedTokenizerFast:
    """The words of captions, each a token; any other word is `<unk>`. A text begins with `<s>`."""
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, vocabulary[START])])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=START, pad_token=PAD, unk_token=UNKNOWN, padding_side="left"
    )


def language_model(tokens: int = FIRST_CODE + CODES) -> LlamaForCausalLM:
    """Return 0.9 M parameters over words and codes, untrained; `tokens`: the size of the vocabulary."""
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # for texts of 73 tokens
        bos_token_id=SPECIAL.index(START),
        pad_token_id=SPECIAL.index(PAD),
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, top_k=0, bos_token_id=config.bos_token_id, pad_token_id=config.pad_token_id
    )
    return model


def save(folder: Path, model: LlamaForCausalLM, patches: Tensor) -> None:
    """Write all that draws. `patches` is [CODES, 3, PATCH, PATCH] uint8."""
    model.save_pretrained(folder / "language_model")
    tokenizer().save_pretrained(folder / "tokenizer")
    save_file({"patches": patches.contiguous()}, folder / "patches.safetensors")
    described = {"grid": [GRID, GRID], "first_code": FIRST_CODE, "start": SPECIAL.index(PICTURE)}
    (folder / "image_tokens.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
