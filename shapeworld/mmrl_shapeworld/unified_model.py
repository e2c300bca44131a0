"""The embedded unified model: a real Janus of transformers made small, which draws captions and looks at pictures.

A 32×32 picture is 64 codes on an 8×8 grid where it is drawn, and 64 tokens of a vision tower where it is seen. It loads
without code of ours: `JanusForConditionalGeneration.from_pretrained(UNIFIED)` and `AutoProcessor.from_pretrained`.
`tools.shapeworld_pretrain.unified` trains it.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    PreTrainedTokenizerFast,
)

from mmrl_shapeworld import image_ar
from mmrl_shapeworld.answered_captions import COUNTS, NO, YES

SIDE, PATCH, CODES = 32, image_ar.PATCH, image_ar.CODES
SEEN = (SIDE // PATCH) ** 2
"""The tokens of a picture that is seen: in Janus as many as its codes."""
WIDTH, LAYERS, HEADS, INNER = 128, 4, 4, 352
VISION_WIDTH, VISION_LAYERS = 96, 3
CODE_WIDTH = 32
PAD, START, END, IMAGE, BEGIN, STOP = SPECIAL = ("<pad>", "<s>", "</s>", "<image>", "<begin>", "<stop>")
USER, ASSISTANT, UNKNOWN = "<user>", "<assistant>", "<unk>"
WORDS = (
    *(USER, ASSISTANT, UNKNOWN),
    *image_ar.WORDS,
    *("is", "this", "there", "how", "many", "what", "colour", "shape", "has", "the", "?"),
    *(YES, NO),
    *COUNTS,
)
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<user> ' if message.role == 'user' else '<assistant> ' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{{ '<image> ' if part.type == 'image' else part.text }}
{%- endfor -%}
{%- endif -%}
{{ ' ' if message.role == 'user' else '</s> ' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
"""


def tokenizer() -> PreTrainedTokenizerFast:
    """Return the words of captions, questions and answers, each a token; any other word is `<unk>`."""
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(SPECIAL + WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, vocabulary[START])])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        extra_special_tokens={"image_token": IMAGE, "boi_token": BEGIN, "eoi_token": STOP},
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def processor() -> JanusProcessor:
    """Return what prepares 32×32 pictures, each `SEEN` tokens between `<begin>` and `<stop>`, and texts."""
    size = {"height": SIDE, "width": SIDE}
    seen = JanusImageProcessor(size=size, min_size=SIDE // 2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return JanusProcessor(seen, tokenizer(), chat_template=CHAT_TEMPLATE, num_image_tokens=SEEN)


def build() -> JanusForConditionalGeneration:
    """Return an untrained model of 1.6 M parameters."""
    words = tokenizer()
    config = JanusConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": len(words),
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},  # for texts of some 90 tokens
            "bos_token_id": words.bos_token_id,
            "eos_token_id": words.eos_token_id,
            "pad_token_id": words.pad_token_id,
            "tie_word_embeddings": True,
        },
        vision_config={
            "hidden_size": VISION_WIDTH,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": VISION_WIDTH // 32,
            "image_size": SIDE,
            "patch_size": PATCH,
            "mlp_ratio": 2.0,
            "projection_dim": WIDTH,
            "num_image_tokens": SEEN,
            "depth": 1,
        },
        vq_config={
            "embed_dim": CODE_WIDTH,
            "num_embeddings": CODES,
            "latent_channels": 32,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1],
            "num_res_blocks": 0,
            "projection_dim": WIDTH,
            "image_token_embed_dim": WIDTH,
            "num_hidden_layers": 1,
        },
        image_token_id=words.convert_tokens_to_ids(IMAGE),
        tie_word_embeddings=True,
    )
    model = JanusForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        top_k=0,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        generation_kwargs={"boi_token_id": words.convert_tokens_to_ids(BEGIN)},
    )
    return model
