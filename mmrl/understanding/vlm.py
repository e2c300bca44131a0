"""Vision-language models of transformers: loading, special tokens, and which parts are trained."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from mmrl.config.policy import LoraConfig, VLMConfig
from mmrl.distributed.divided_blocks import is_divided
from mmrl.errors import ConfigError
from mmrl.finetuning.transformers_modules import TransformersFull, TransformersLora, select_layers
from mmrl.tokens.kv_cache import extends_token_by_token
from mmrl.understanding.vlm_family import VLMFamily, family_of
from mmrl.understanding.vlm_support import refused_reason

log = logging.getLogger(__name__)

_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
_MARKS = re.compile(r"(image|video|vision|visual|audio|boi|eoi|boa|eoa|frame|im_)\w*_(id|ids|index)")
"""The names of settings with the numbers of tokens that mark media: none of them is ever a word of an answer."""
_CONNECTORS = {
    *("multi_modal_projector", "connector", "merger", "merger_list", "deepstack_merger_list", "image_newline"),
    *("aligner", "projector", "mm_projector", "embed_vision", "resampler_model", "vision_resampler", "view_separator"),
    *("vision_projection", "vision_adapter", "perception_emb_norm", "visual_embeddings_table", "visual_projection"),
    *("high_res_vision_proj", "high_res_vision_alpha", "layerwise_projectors", "spatial_projectors"),
    *("qformer", "query_tokens", "language_projection", "image_to_text_projection"),
}
_TOWERS = {
    *("visual", "vision_tower", "vision_model", "vision_embed_tokens", "vision_encoder", "image_encoder"),
    *("image_tower", "video_tower", "high_res_vision_model", "high_res_vision_neck"),
}
_UNUSED = {
    *("audio_tower", "embed_audio", "vqmodel"),
    *("generation_embeddings", "generation_aligner", "generation_head"),
}
"""Parts that answers to images and videos do not use: encoders of sound, and what draws images (Janus)."""

VLMPart = Literal["vision", "connector", "language", "unused"]


@dataclass(frozen=True)
class VLM:
    """A loaded model, its processor, and their special tokens."""

    model: Any
    processor: Any
    family: VLMFamily
    device: torch.device
    padding: int
    ends: Tensor  # [E] int64; tokens that end an answer
    end: int  # the end token that the chat template puts after an answer
    suppressed: Tensor  # [S] int64; tokens that are never sampled: placeholders of images and videos
    placeholders: dict[str, int]  # {"image" or "video": its placeholder token}
    measured: dict[str, bool] = field(default_factory=dict)
    """{a shorter way of computing: True if its logits are equal}, measured where it is first possible."""

    @property
    def is_divided(self) -> bool:
        """True if processes share the parameters, so that a forward pass of one process waits for the others."""
        return is_divided(self.model)

    @property
    def unshared_reason(self) -> str | None:
        """The reason why answers of this family cannot share their prompt; None: its layers decide."""
        if not self.family.causal:
            return f"tokens of a {self.family.name} prompt may attend to later ones"
        return self.family.unshared or None

    @property
    def extends_token_by_token(self) -> bool:
        """True if a prompt's cache can be continued by one token at a time only: a replay computes whole texts."""
        return extends_token_by_token(self.model.config.get_text_config())

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processor."""
        return self.processor.tokenizer

    def differs_in_tokens(self, theirs: VLM) -> str | None:
        """Return why another model cannot score what this one wrote, as a clause; None: it can."""
        if self.family.name != theirs.family.name:
            return f"it is of the family {theirs.family.name}, and the policy of {self.family.name}"
        if self.end != theirs.end or self.tokenizer.get_vocab() != theirs.tokenizer.get_vocab():
            return f"its tokenizer ({len(theirs.tokenizer)} tokens) is not the policy's ({len(self.tokenizer)} tokens)"
        return None

    def to_device(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move inputs to the model's device, and pixels to its dtype."""
        dtype = self.model.dtype
        return {
            name: value.to(self.device, dtype if value.is_floating_point() and "pixel" in name else None)
            for name, value in inputs.items()
        }

    def decode(self, token_ids: list[int], kept: Collection[str] = ()) -> str:
        """Return the text of tokens, without special tokens but those of `kept`."""
        if not kept:
            return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))
        names = self.tokenizer.convert_ids_to_tokens(token_ids)
        dropped = set(self.tokenizer.all_special_tokens) - set(kept)
        written = [number for number, name in zip(token_ids, names, strict=True) if name not in dropped]
        return str(self.tokenizer.decode(written, skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens around it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def load_vlm(config: VLMConfig) -> VLM:
    """Load the model and the processor that a configuration names.

    Raises:
        ConfigError: transformers cannot load an image-text-to-text model from there, or it is of a refused type.
    """
    device = torch.device("cuda" if config.device == "auto" and torch.cuda.is_available() else
                          "cpu" if config.device == "auto" else config.device)  # fmt: skip
    try:
        settings = AutoConfig.from_pretrained(config.model, revision=config.revision)
        if reason := refused_reason(settings):
            raise ConfigError(f"policy.model: {config.model} is a {settings.model_type} model, and {reason}")
        model = AutoModelForImageTextToText.from_pretrained(
            config.model, revision=config.revision, dtype=getattr(torch, config.dtype), use_safetensors=True
        )
        processor = AutoProcessor.from_pretrained(config.model, revision=config.revision)
    except ConfigError:
        raise
    except (OSError, ValueError) as err:
        first = str(err).partition("\n")[0]  # transformers lists all its classes in the following lines
        raise ConfigError(f"policy.model: {config.model} cannot be loaded as a vision-language model: {first}") from err
    model.eval().to(device)
    for module in model.modules():  # checkpointing needs the training mode, replay needs determinism
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return describe(model, processor, device)


def describe(model: Any, processor: Any, device: torch.device) -> VLM:
    """Collect the special tokens and the family of a loaded model."""
    tokenizer, settings = processor.tokenizer, model.config
    placeholders: dict[str, int] = {}
    for name in _PLACEHOLDERS:
        for owner in (settings, processor):
            number = getattr(owner, name, None)
            if number is not None:
                placeholders.setdefault(name.partition("_")[0], number)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [tokenizer.eos_token_id if ends is None else ends]
    family = family_of(model)
    words = settings.get_text_config().vocab_size
    suppressed = sorted({n for n in {*_marks_of_media(settings), *placeholders.values()} if n < words} - set(ends))
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


def _marks_of_media(settings: Any) -> set[int]:
    """Return the tokens that a configuration names as placeholders or marks of images, videos and sound."""
    named = [value for name, value in vars(settings).items() if _MARKS.fullmatch(name)]
    numbers = {n for value in named for n in (value if isinstance(value, list | tuple) else [value])}
    return {n for n in numbers if isinstance(n, int) and n >= 0}


def _end_of_answer(processor: Any, ends: list[int]) -> int:
    """Return the end token that the chat template puts after an answer.

    Gemma 3 stops at `<eos>` and at `<end_of_turn>`, and was trained to write the second.
    """
    if len(ends) == 1 or processor.chat_template is None:
        return ends[0]
    content = [{"type": "text", "text": "@"}]
    try:
        turns = [{"role": role, "content": content} for role in ("user", "assistant")]
        after = processor.apply_chat_template(turns, tokenize=False).rpartition("@")[2]
    except (TemplateError, TypeError) as err:
        log.info(
            "the chat template does not show how an answer ends (%s); target texts end with token %d", err, ends[0]
        )
        return ends[0]
    written = processor.tokenizer(after, add_special_tokens=False)["input_ids"]
    return next((number for number in written if number in ends), ends[0])


def part_of(parameter: str) -> VLMPart:
    """Return the part of the model that a parameter belongs to, by its name in transformers.

    >>> part_of("model.visual.merger.linear_fc1.weight"), part_of("model.vision_tower.encoder.layers.0.bias")
    ('connector', 'vision')
    """
    steps = set(parameter.split("."))
    if steps & _UNUSED:
        return "unused"
    if steps & _CONNECTORS:
        return "connector"
    return "vision" if steps & _TOWERS else "language"


def trained_parts(config: VLMConfig) -> set[VLMPart]:
    """Return the parts of the model that a configuration trains; the language model is always one."""
    parts: set[VLMPart] = {"language"}
    if config.vision.train:
        parts.add("vision")
    if config.connector.train:
        parts.add("connector")
    return parts


def is_linear(module: nn.Module) -> bool:
    """Return True for a linear layer that an adapter can be added to; a router of Llama 4 returns two tensors."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def layers_for_fp8(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of the language model but its output layer; before adapters are added.

    Raises:
        ConfigError: it has none.
    """
    found = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and is_linear(module)
        and part_of(path) == "language"
        and not path.endswith("lm_head")
    ]
    if not found:
        raise ConfigError(f"policy.fp8: the language model of {type(model).__name__} has no linear layer")
    return found


def lora_of_parts(model: nn.Module, config: LoraConfig, parts: set[VLMPart]) -> TransformersLora:
    """Add LoRA adapters to the linear layers of parts, except the output layer.

    Raises:
        ConfigError: a part has no linear layer, or `config.targets` names a layer that does not exist.
    """
    linear = [path for path, module in model.named_modules() if is_linear(module)]
    inside = [path for path in linear if part_of(path) in parts and not path.endswith("lm_head")]
    if bare := sorted(parts - {part_of(path) for path in inside}):
        raise ConfigError(
            f"policy.{bare[0]}.train: the {bare[0]} of {type(model).__name__} has no linear layer for an adapter; "
            "policy.train=full can train it"
        )
    return TransformersLora(model, config, select_layers(inside, config.targets))


def full_training_of_parts(model: nn.Module, parts: set[VLMPart]) -> TransformersFull:
    """Train all parameters of parts; the reference is a frozen copy of them.

    Raises:
        ConfigError: the model has no parameters of a part.
    """
    if absent := sorted(parts - {part_of(name) for name, _ in model.named_parameters()}):
        raise ConfigError(f"policy.{absent[0]}.train: {type(model).__name__} has no {absent[0]} apart")
    return TransformersFull(model, lambda name: part_of(name) in parts)
