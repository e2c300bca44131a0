"""The embedded generator of scales: a codebook of patches for pictures of all sizes, and a small Llama.

A 32×32 picture is drawn in four scales of 1×1, 2×2, 4×4 and 8×8 codes, pictures of 4, 8, 16 and 32 pixels; a code is a
square of 4×4 pixels. The folder is one that `mmrl.generation.image_tokens.next_scale_lm` reads;
`tools.shapeworld_pretrain.scales` trains it.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from mmrl.generation.image_tokens.next_scale_lm import SCALES_FILE, NextScaleSpec
from mmrl_shapeworld import image_ar
from mmrl_shapeworld.image_ar import FIRST_CODE, PICTURE, SPECIAL, tokenizer

SCALES = ((1, 1), (2, 2), (4, 4), (8, 8))
PER_SCALE = (128, 256, 384, 512)
"""The patches of the codebook that are taken from pictures of each size."""
CODES = sum(PER_SCALE)
PLACES = sum(rows * columns for rows, columns in SCALES)
FIRST_PLACE = FIRST_CODE + CODES
"""The token that stands for the first place; the others follow it."""


SPEC = NextScaleSpec(
    *SCALES[-1],
    first_code=FIRST_CODE,
    start=SPECIAL.index(PICTURE),
    first_place=FIRST_PLACE,
    scales=SCALES,
)


def language_model() -> LlamaForCausalLM:
    """Return 1.2 M parameters over words, codes and places, untrained."""
    return image_ar.language_model(FIRST_PLACE + PLACES)


def save(folder: Path, model: LlamaForCausalLM, patches: Tensor) -> None:
    """Write all that draws, in half precision. `patches` is [CODES, 3, PATCH, PATCH] uint8."""
    model.half().save_pretrained(folder / "language_model")
    tokenizer().save_pretrained(folder / "tokenizer")
    save_file({"patches": patches.contiguous()}, folder / "patches.safetensors")
    SPEC.write(folder / SCALES_FILE)
