"""Vision-language models of a few thousand random weights: the real classes of every family, and their real processors.

`build("qwen3_vl", folder)` saves model and processor as a published checkpoint is saved, in well under a second and
without a network; `AutoModelForImageTextToText` and `AutoProcessor` load it. Equal names give equal weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, ProcessorMixin

from tests.understanding.tiny_vlms import gemma, idefics, internvl, llava, qwen

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


def build(name: str, folder: Path) -> Path:
    """Save a family's tiny model and its processor into a folder."""
    model, processor = FAMILIES[name]()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
