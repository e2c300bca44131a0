"""Vision-language models of a few thousand random weights: the real classes of every family, and their real processors.

`build("qwen3_vl", folder)` saves model and processor as a published checkpoint is saved, in well under a second and
without a network; `AutoModelForImageTextToText` and `AutoProcessor` load it. Equal names give equal weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, ProcessorMixin

from tests.understanding.tiny_vlms import (
    factory,
    gemma,
    idefics,
    internvl,
    llava,
    llava_like,
    patch_rows,
    qwen,
    qwen_like,
    sound_rows,
)
from tests.understanding.tiny_vlms.factory import Takes, TinyVLM

Builder = Callable[[], tuple[PreTrainedModel, ProcessorMixin]]

FAMILIES: dict[str, Builder] = {
    builder.__name__: builder
    for builder in (
        qwen.qwen2_vl,
        qwen.qwen2_5_vl,
        qwen.qwen3_vl,
        internvl.internvl,
        idefics.smolvlm,
        idefics.idefics3,
        llava.llava,
        llava.llava_next,
        llava.llava_onevision,
        gemma.gemma3,
        gemma.paligemma,
    )
}

ROWS: dict[str, TinyVLM] = {**llava_like.ROWS, **qwen_like.ROWS, **patch_rows.ROWS, **sound_rows.ROWS}
"""The families that are rows of a table; the model type of a family is its name."""

TAKES: dict[str, Takes] = {
    **{name: Takes(video=True) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision")},
    "smolvlm": Takes(video=True, mixes=False),
    **{name: Takes() for name in ("idefics3", "llava", "llava_next", "gemma3")},
    "paligemma": Takes(text_alone=False),
    **{name: row.takes for name, row in ROWS.items()},
}
"""The media that a prompt of each family may hold."""


def build(name: str, folder: Path) -> Path:
    """Save a family's tiny model and its processor into a folder."""
    model, processor = FAMILIES[name]() if name in FAMILIES else factory.make(name, ROWS[name])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
