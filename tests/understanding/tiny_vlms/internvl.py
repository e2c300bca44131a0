"""InternVL as transformers has it: tiles beside a thumbnail, and to it a video is its frames, each a picture."""

from __future__ import annotations

from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    InternVLVisionConfig,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2Config,
)

from tests.understanding.tiny_vlms.words import PATCH, SIDE, TEXT, TOWER, byte_tokenizer, marks, stir

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<IMG_CONTEXT>\n{% elif part['type'] == 'video' %}<video>\n"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = (SIDE // PATCH) ** 2 // 4  # of a tile: 2 x 2 patches are shuffled into one


def internvl() -> tuple[PreTrainedModel, ProcessorMixin]:
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    words = byte_tokenizer("<|im_start|>", "<|im_end|>", "<|endoftext|>", [], named)
    model = InternVLForConditionalGeneration(
        InternVLConfig(
            text_config=Qwen2Config(**TEXT, **marks(words)),
            vision_config=InternVLVisionConfig(**TOWER, image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH]),
            image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
            image_seq_length=TOKENS,
        )
    )
    stir(model)
    size = {"height": SIDE, "width": SIDE}
    return model, InternVLProcessor(
        GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=2),
        words,
        InternVLVideoProcessor(size=size),
        image_seq_length=TOKENS,
        chat_template=TURNS,
    )
