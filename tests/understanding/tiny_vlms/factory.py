"""From a row of a table to a model and a processor: the one place where the further families are made.

A family's default configuration is walked with `SMALL`, which gives every size in it a small value; the row holds what
is left. Its tokenizer has the tokens of the row, its chat template writes the row's marks of an image and a video.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel, ProcessorMixin

from tests.understanding.tiny_vlms.words import PATCH, SIDE, byte_tokenizer, marks, stir

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "out_hidden_size", "text_hidden_size", "output_dim"), 32),
    **dict.fromkeys(("projection_dim", "projection_hidden_size", "encoder_hidden_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "projector_hidden_size", "mlp_dim", "ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("num_hidden_layers", "depth", "encoder_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "index_topk_blocks"), 2),
    **dict.fromkeys(
        ("head_dim", "v_head_dim", "qk_nope_head_dim", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"), 8
    ),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "window_size"), 8),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "encoder_ffn_dim"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    "max_position_embeddings": 1024,
    "image_size": SIDE,
    "patch_size": PATCH,
    "num_position_embeddings": 16,
}
"""{name of a size: its value}, wherever a configuration has it."""

TURNS = (
    "{{% for message in messages %}}<|im_start|>{{{{ message['role'] }}}}\n"
    "{{% if message['content'] is string %}}{{{{ message['content'] }}}}{{% else %}}"
    "{{% for part in message['content'] %}}"
    "{{% if part['type'] == 'image' %}}{image}{{% elif part['type'] == 'video' %}}{video}"
    "{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{{% endif %}}<|im_end|>\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
)

Part = tuple[str, Mapping[str, Any]]
"""A class of transformers and its arguments."""


@dataclass(frozen=True)
class Takes:
    """The media that a prompt of a family may hold."""

    several: bool = True  # several images
    video: bool = False
    text_alone: bool = True  # no image
    mixes: bool = True  # images and a video
    requested: Mapping[str, Any] = field(default_factory=dict)  # arguments without which a processor leaves inputs out


@dataclass(frozen=True)
class TinyVLM:
    """The settings of a family beyond the small sizes."""

    processor: str
    images: Part
    videos: Part | None = None
    image: str = "<image>"  # what the chat template writes for an image
    video: str = "<video>"
    tokens: tuple[str, ...] = ("<image>",)  # special tokens
    named: Mapping[str, str] = field(default_factory=dict)  # special tokens by their attribute of the tokenizer
    ids: Mapping[str, str | list[str]] = field(
        default_factory=dict
    )  # a key of the configuration, and the token whose number it is
    kinds: Mapping[str, str] = field(default_factory=dict)  # {part: its model type}, where it is not the default
    config: Mapping[str, Any] = field(default_factory=dict)  # what `SMALL` does not say; a mapping for a part
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the processor
    parts: Mapping[str, Part] = field(default_factory=dict)  # further parts of the processor
    template: bool = True  # False: the processor has no chat template
    plays: bool = True  # False: its model fails on the videos of its processor
    several: bool = True
    text_alone: bool = True
    mixes: bool = True
    requested: Mapping[str, Any] = field(default_factory=dict)
    heavy: bool = False  # tested under the marker `breadth`, even if it is the only one of its features

    @property
    def takes(self) -> Takes:
        """Return what a prompt may hold."""
        return Takes(self.several, self.videos is not None and self.plays, self.text_alone, self.mixes, self.requested)


def make(model_type: str, row: TinyVLM) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Return a model with random weights, and its processor."""
    words = byte_tokenizer("<|im_start|>", "<|im_end|>", "<|endoftext|>", list(row.tokens), row.named)
    parts = {name: part(each) for name, each in row.parts.items()}
    parts["image_processor"] = part(row.images)
    if row.videos is not None:
        parts["video_processor"] = part(row.videos)
    template = {"chat_template": TURNS.format(image=row.image, video=row.video)} if row.template else {}
    processor = getattr(transformers, row.processor)(**parts, tokenizer=words, **row.settings, **template)
    settings = merged(small(CONFIG_MAPPING[model_type](), row.kinds), row.config)
    text = settings.get("text_config", settings)
    text.update(marks(words))
    settings |= {key: words.convert_tokens_to_ids(token) for key, token in row.ids.items()}  # of several: a list
    model = AutoModelForImageTextToText.from_config(CONFIG_MAPPING[model_type](**settings))
    stir(model)
    return model, processor


def part(described: Part) -> Any:
    """Return a part of a processor."""
    kind, settings = described
    return getattr(transformers, kind)(**settings)


def small(config: PreTrainedConfig, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that make a configuration small; `kinds` holds the types of parts that are not default."""
    found: dict[str, Any] = {name: value for name, value in SMALL.items() if _plain(vars(config).get(name))}
    for name in config.sub_configs:
        own = CONFIG_MAPPING[kinds[name]]() if name in kinds else getattr(config, name, None)
        if isinstance(own, PreTrainedConfig):
            found[name] = {"model_type": own.model_type, **small(own, {})}
    return found


def _plain(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes, part by part."""
    found = dict(settings)
    for name, value in changes.items():
        inside = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if inside else value
    return found
