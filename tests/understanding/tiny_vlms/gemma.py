"""Gemma 3 and PaliGemma: pictures of one size whose tokens see one another in both directions."""

from __future__ import annotations

from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma3TextConfig,
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedModel,
    ProcessorMixin,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

from tests.understanding.tiny_vlms.words import PATCH, SIDE, TEXT, TOWER, byte_tokenizer, marks, stir

TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>{% elif part['type'] == 'text' %}{{ part['text'] | trim }}"
    "{% endif %}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
SQUARE = {"height": SIDE, "width": SIDE}
TOKENS = 4  # of a picture, to a Gemma 3: its 4 x 4 patches are averaged by fours
WINDOW = 24  # of every other layer, shorter than a prompt


def gemma3() -> tuple[PreTrainedModel, ProcessorMixin]:
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    words = byte_tokenizer("<bos>", "<end_of_turn>", "<pad>", ["<start_of_turn>"], named)
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=Gemma3TextConfig(
                **TEXT,
                **marks(words),
                query_pre_attn_scalar=8,
                sliding_window=WINDOW,
                layer_types=["sliding_attention", "full_attention"],
            ),
            vision_config=SiglipVisionConfig(**TOWER, image_size=SIDE, patch_size=PATCH, vision_use_head=False),
            mm_tokens_per_image=TOKENS,
            boi_token_index=words.convert_tokens_to_ids("<start_of_image>"),
            eoi_token_index=words.convert_tokens_to_ids("<end_of_image>"),
            image_token_index=words.convert_tokens_to_ids("<image_soft_token>"),
        )
    )
    stir(model)
    pictures = Gemma3ImageProcessor(size=SQUARE)
    return model, Gemma3Processor(pictures, words, chat_template=TURNS, image_seq_length=TOKENS)


def paligemma() -> tuple[PreTrainedModel, ProcessorMixin]:
    words = byte_tokenizer("<bos>", "<eos>", "<pad>", [])
    pictures = SiglipImageProcessor(size=SQUARE)
    pictures.image_seq_length = (SIDE // PATCH) ** 2
    processor = PaliGemmaProcessor(pictures, words)  # adds <image>, <loc0000> and their like to the tokenizer
    model = PaliGemmaForConditionalGeneration(
        PaliGemmaConfig(
            text_config=GemmaConfig(**TEXT, **marks(words)),
            vision_config=SiglipVisionConfig(**TOWER, image_size=SIDE, patch_size=PATCH, vision_use_head=False),
            image_token_index=words.convert_tokens_to_ids("<image>"),
            projection_dim=TEXT["hidden_size"],
            hidden_size=TEXT["hidden_size"],
        )
    )
    stir(model)
    return model, processor
