"""LLaVA, LLaVA-NeXT and LLaVA-OneVision: a square picture; tiles of a large one; tiles, several pictures or a video."""

from __future__ import annotations

from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    MistralConfig,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2Config,
    SiglipVisionConfig,
)

from tests.understanding.tiny_vlms.words import PATCH, SIDE, TEXT, TOWER, byte_tokenizer, marks, stir

TILE = SIDE // 2
TILES = [[TILE, 2 * TILE], [2 * TILE, TILE], [2 * TILE, 2 * TILE]]  # (height, width) that a picture is fitted into
# Pictures come first, the words of a turn after them. A video leaves no mark in these templates, OneVision's apart.
PICTURES = "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
VIDEOS = "{% for part in message['content'] if part['type'] == 'video' %}<video>\n{% endfor %}"
SPOKEN = "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
VICUNA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() }}: {% endif %}"
    + PICTURES
    + SPOKEN
    + "{% if message['role'] == 'assistant' %}</s>{% else %} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
MISTRAL = (
    "{% for message in messages %}{% if message['role'] == 'user' %}[INST] "
    + PICTURES
    + SPOKEN
    + " [/INST]{% else %}"
    + SPOKEN
    + "{% if message['role'] == 'assistant' %}</s>{% endif %}{% endif %}{% endfor %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} "
    + PICTURES
    + VIDEOS
    + SPOKEN
    + "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llava() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = byte_tokenizer("<s>", "</s>", "<pad>", ["<image>"])
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=LlamaConfig(**TEXT, **marks(words)),
            vision_config=CLIPVisionConfig(**TOWER, image_size=SIDE, patch_size=PATCH),
            image_token_index=words.convert_tokens_to_ids("<image>"),
            image_seq_length=(SIDE // PATCH) ** 2,
        )
    )
    stir(model)
    pictures = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    settings = dict(patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1)
    return model, LlavaProcessor(pictures, words, chat_template=VICUNA, **settings)


def llava_next() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = byte_tokenizer("<s>", "</s>", "<pad>", ["<image>"])
    model = LlavaNextForConditionalGeneration(
        LlavaNextConfig(
            text_config=MistralConfig(**TEXT, **marks(words), sliding_window=None),
            vision_config=CLIPVisionConfig(**TOWER, image_size=TILE, patch_size=PATCH),
            image_token_index=words.convert_tokens_to_ids("<image>"),
            image_grid_pinpoints=TILES,
            image_seq_length=(TILE // PATCH) ** 2,
        )
    )
    stir(model)
    pictures = LlavaNextImageProcessor(
        size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE}, image_grid_pinpoints=TILES
    )
    settings = dict(patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1)
    return model, LlavaNextProcessor(pictures, words, chat_template=MISTRAL, **settings)


def llava_onevision() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = byte_tokenizer("<|im_start|>", "<|im_end|>", "<|endoftext|>", ["<image>", "<video>"])
    size = {"height": TILE, "width": TILE}
    model = LlavaOnevisionForConditionalGeneration(
        LlavaOnevisionConfig(
            text_config=Qwen2Config(**TEXT, **marks(words)),
            vision_config=SiglipVisionConfig(**TOWER, image_size=TILE, patch_size=PATCH, vision_use_head=False),
            image_token_index=words.convert_tokens_to_ids("<image>"),
            video_token_index=words.convert_tokens_to_ids("<video>"),
            image_grid_pinpoints=TILES,
        )
    )
    stir(model)
    return model, LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=TILES),
        words,
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(TILE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHATML,
    )
