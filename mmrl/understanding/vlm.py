"""A vision-language model as transformers loads it, with what writing and scoring need to know of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.config.policy import VLMConfig
from mmrl.errors import ConfigError
from mmrl.rewards.parsing.boxes import Space

log = logging.getLogger(__name__)

_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
_MARKS = ("vision_start_token_id", "vision_end_token_id", "vision_token_id", "boi_token_index", "eoi_token_index")


@dataclass(frozen=True)
class VLM:
    """A model, its processor, and their special tokens."""

    model: Any
    processor: Any
    family: Family
    device: torch.device
    padding: int
    ends: Tensor  # [E]; tokens that end an answer
    end: int  # the one that the model's chat template puts after an answer
    suppressed: Tensor  # [S]; tokens that are never written: they stand for pictures and videos
    placeholders: dict[str, int]  # the tokens that stand for "image" and "video"

    @property
    def tokenizer(self) -> Any:
        """The processor's own."""
        return self.processor.tokenizer

    def to_device(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """On the model's device; pixels in the precision that it computes in."""
        dtype = self.model.dtype
        return {
            name: value.to(self.device, dtype if value.is_floating_point() and "pixel" in name else None)
            for name, value in inputs.items()
        }

    def decode(self, token_ids: list[int]) -> str:
        """The text, without special tokens."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones around it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def load_vlm(config: VLMConfig) -> VLM:
    """The model and the processor that a configuration names.

    Raises:
        ConfigError: transformers has no image-text-to-text model there.
    """
    device = torch.device("cuda" if config.device == "auto" and torch.cuda.is_available() else
                          "cpu" if config.device == "auto" else config.device)  # fmt: skip
    try:
        model = AutoModelForImageTextToText.from_pretrained(
            config.model, revision=config.revision, dtype=getattr(torch, config.dtype), use_safetensors=True
        )
        processor = AutoProcessor.from_pretrained(config.model, revision=config.revision)
    except (OSError, ValueError) as err:
        first = str(err).partition("\n")[0]  # after it, transformers lists all the classes that it has
        raise ConfigError(f"policy.model: {config.model} cannot be loaded as a vision-language model: {first}") from err
    model.eval().to(device)
    for module in model.modules():  # gradient checkpointing needs the training mode, replay needs no chance
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return describe(model, processor, device)


def describe(model: Any, processor: Any, device: torch.device) -> VLM:
    """What is known of a loaded model."""
    tokenizer, settings = processor.tokenizer, model.config
    ids: dict[str, int | None] = {name: getattr(settings, name, None) for name in (*_PLACEHOLDERS, *_MARKS)}
    placeholders: dict[str, int] = {}
    for name in _PLACEHOLDERS:
        if (number := ids[name]) is not None:
            placeholders.setdefault(name.partition("_")[0], number)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends]
    family = family_of(settings.model_type, hasattr(getattr(model, "model", None), "rope_deltas"))
    suppressed = sorted({number for number in ids.values() if number is not None} - set(ends))
    return VLM(
        model=model,
        processor=processor,
        family=family,
        device=device,
        padding=ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        ends=torch.tensor(ends, device=device),
        end=_end_of_answer(processor, ends),
        suppressed=torch.tensor(suppressed, device=device, dtype=torch.long),
        placeholders=placeholders,
    )


def _end_of_answer(processor: Any, ends: list[int]) -> int:
    """Of several tokens that end an answer, the one that is written after it in a conversation.

    Gemma 3 stops at `<eos>` and at `<end_of_turn>`, and was taught to write the second.
    """
    if len(ends) == 1 or processor.chat_template is None:
        return ends[0]
    said = [{"type": "text", "text": "@"}]
    try:
        turns = [{"role": role, "content": said} for role in ("user", "assistant")]
        after = processor.apply_chat_template(turns, tokenize=False).rpartition("@")[2]
    except (TemplateError, TypeError) as err:
        log.info("the chat template does not show how an answer ends (%s); given texts end with token %d", err, ends[0])
        return ends[0]
    written = processor.tokenizer(after, add_special_tokens=False)["input_ids"]
    return next((number for number in written if number in ends), ends[0])


# What differs between the families of vision-language models that transformers loads, beyond what it hides itself.
#
# A family that is not listed is taken to be plain: text positions that count from 0, answers in shares of the picture,
# and perhaps a picture's tokens that look at one another.


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
