"""What differs between the families of vision-language models that transformers loads, beyond what it hides itself.

A family that is not listed is taken to be plain: text positions that count from 0, answers in shares of the picture,
and perhaps a picture's tokens that look at one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mmrl.rewards.parsing.boxes import Space

Part = Literal["vision", "connector", "language"]

_CONNECTORS = {"multi_modal_projector", "connector", "merger", "merger_list", "deepstack_merger_list", "image_newline"}
_TOWERS = {"visual", "vision_tower", "vision_model", "vision_embed_tokens"}


@dataclass(frozen=True)
class Family:
    """How one family of models counts and answers."""

    name: str
    space: Space = "norm_1"
    """What coordinates in its answers count, as it was trained by its makers."""
    first_position: int = 0
    """The position of a prompt's first token."""
    axes: int = 1
    """Axes of a token's rotary position: 3 where pictures have a time, a height and a width."""
    answer_type: int = 0
    """What `token_type_ids` say of a written token, in models that take them."""
    mixes_media: bool = True
    """Whether one prompt may hold pictures and videos."""
    causal: bool = False
    """Whether every token, those of pictures too, looks at what came before it alone: its prompts can be shared."""


_LISTED = (
    Family("qwen2_vl", space="norm_1000", axes=3, causal=True),
    Family("qwen2_5_vl", space="pixel", axes=3, causal=True),
    Family("qwen3_vl", space="norm_1000", axes=3, causal=True),
    Family("qwen3_vl_moe", space="norm_1000", axes=3, causal=True),
    Family("internvl", space="norm_1000", causal=True),
    Family("llava", causal=True),
    Family("llava_next", causal=True),
    Family("llava_onevision", causal=True),
    Family("idefics3", causal=True),
    Family("smolvlm", mixes_media=False, causal=True),  # its processor writes a video's frames over the pictures
    Family("gemma3", space="norm_1000"),
    Family("paligemma", first_position=1, answer_type=1),
)


def family_of(model_type: str, has_rope_deltas: bool) -> Family:
    """The family of a model by its configuration's `model_type`; an unknown one by how its positions are counted."""
    for family in _LISTED:
        if family.name == model_type:
            return family
    return replace(Family(model_type), axes=3 if has_rope_deltas else 1)


def part_of(parameter: str) -> Part:
    """Which part of a model a parameter belongs to, by the names that transformers gives them.

    >>> part_of("model.visual.merger.linear_fc1.weight"), part_of("model.vision_tower.encoder.layers.0.bias")
    ('connector', 'vision')
    """
    steps = set(parameter.split("."))
    if steps & _CONNECTORS:
        return "connector"
    return "vision" if steps & _TOWERS else "language"
