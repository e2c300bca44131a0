"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: pictures and videos of any size, rotary positions on three axes."""

from __future__ import annotations

from typing import Any

from transformers import (
    PreTrainedModel,
    ProcessorMixin,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from tests.understanding.tiny_vlms.words import PATCH, TEXT, byte_tokenizer, marks, stir

# Qwen2-VL and Qwen2.5-VL put a system prompt before a conversation that has none; Qwen3-VL does not.
SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
)
TURNS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PATCHES = dict(patch_size=PATCH, temporal_patch_size=2)
CELL = (2 * PATCH) ** 2  # pixels behind a token: 2 x 2 patches are merged
PICTURES = PATCHES | dict(merge_size=2, size={"shortest_edge": 4 * CELL, "longest_edge": 16 * CELL})
# Qwen3-VL counts the pixels of all frames together, its elders those of each.
VIDEOS = PATCHES | dict(merge_size=2, do_sample_frames=False)
TOWER = PATCHES | dict(depth=2, num_heads=4, spatial_merge_size=2)


def qwen2_vl() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = _words()
    model = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config=_text(words, [1, 1, 2]),
            vision_config=TOWER | dict(embed_dim=32, hidden_size=32, mlp_ratio=2),
            **_placeholders(words),
        )
    )
    stir(model)
    videos = Qwen2VLVideoProcessor(**VIDEOS, size={"shortest_edge": 4 * CELL, "longest_edge": 16 * CELL})
    return model, Qwen2VLProcessor(Qwen2VLImageProcessor(**PICTURES), words, videos, chat_template=SYSTEM + TURNS)


def qwen2_5_vl() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = _words()
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=_text(words, [1, 1, 2]),
            vision_config=TOWER
            | dict(hidden_size=32, intermediate_size=64, out_hidden_size=32)
            | dict(window_size=4 * PATCH, fullatt_block_indexes=[1]),
            **_placeholders(words),
        )
    )
    stir(model)
    videos = Qwen2VLVideoProcessor(**VIDEOS, size={"shortest_edge": 4 * CELL, "longest_edge": 16 * CELL})
    return model, Qwen2_5_VLProcessor(Qwen2VLImageProcessor(**PICTURES), words, videos, chat_template=SYSTEM + TURNS)


def qwen3_vl() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = _words()
    model = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config=_text(words, [2, 1, 1]),
            vision_config=TOWER
            | dict(hidden_size=32, intermediate_size=64, out_hidden_size=32)
            | dict(num_position_embeddings=16, deepstack_visual_indexes=[0]),
            **_placeholders(words),
        )
    )
    stir(model)
    size = {"shortest_edge": 4 * CELL, "longest_edge": 64 * CELL}
    videos = Qwen3VLVideoProcessor(**VIDEOS, size=size, cap_pixels_per_frame=False)
    return model, Qwen3VLProcessor(Qwen2VLImageProcessor(**PICTURES), words, videos, chat_template=TURNS)


def _words() -> Any:
    seen = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    return byte_tokenizer("<|im_start|>", "<|im_end|>", "<|endoftext|>", seen)


def _text(words: Any, sections: list[int]) -> dict[str, Any]:
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0}
    return TEXT | marks(words) | dict(rope_parameters=rope)


def _placeholders(words: Any) -> dict[str, int]:
    return dict(
        image_token_id=words.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=words.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=words.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=words.convert_tokens_to_ids("<|vision_end|>"),
    )
