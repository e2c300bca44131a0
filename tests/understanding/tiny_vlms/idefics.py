"""Idefics3 and SmolVLM: pictures cut into tiles beside a view of the whole; to SmolVLM a video is its frames."""

from __future__ import annotations

from typing import Any

from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlamaConfig,
    PreTrainedModel,
    ProcessorMixin,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from tests.understanding.tiny_vlms.words import PATCH, SIDE, TEXT, TOWER, byte_tokenizer, marks, stir

TURNS = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>"
    "{% elif part['type'] == 'video' %}<video>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
TOKENS = (SIDE // PATCH) ** 2 // 4  # of a tile: 2 x 2 patches are shuffled into one
EDGES = dict(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})


def idefics3() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = _words(["<image>", "<fake_token_around_image>", "<end_of_utterance>"])
    processor = Idefics3Processor(
        Idefics3ImageProcessor(**EDGES, do_image_splitting=True), words, image_seq_len=TOKENS, chat_template=TURNS
    )
    model = Idefics3ForConditionalGeneration(Idefics3Config(**_sizes(words)))
    stir(model)
    return model, processor


def smolvlm() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = _words(["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"])
    processor = SmolVLMProcessor(
        SmolVLMImageProcessor(**EDGES, do_image_splitting=False),
        words,
        SmolVLMVideoProcessor(**EDGES),
        image_seq_len=TOKENS,
        chat_template=TURNS,
    )
    model = SmolVLMForConditionalGeneration(SmolVLMConfig(**_sizes(words)))
    stir(model)
    return model, processor


def _words(special: list[str]) -> Any:
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    return byte_tokenizer("<|im_start|>", "<end_of_utterance>", "<|im_end|>", [*special, *places])


def _sizes(words: Any) -> dict[str, Any]:
    return dict(
        text_config=LlamaConfig(**TEXT, **marks(words)),
        vision_config=TOWER | dict(image_size=SIDE, patch_size=PATCH),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        pad_token_id=words.pad_token_id,
        scale_factor=2,
    )
