"""The embedded vision-language model: real Qwen3-VL classes made small, for looking at ShapeWorld.

It loads without code of ours: `AutoModelForImageTextToText.from_pretrained(VLM)` and
`AutoProcessor.from_pretrained(VLM)`. `tools.shapeworld_pretrain.vlm` warm-starts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from mmrl_shapeworld.vqa.canvas import FRAMES_PER_SECOND, PIXELS
from mmrl_shapeworld.vqa.questions import FRAMES

PATCH, MERGE = 7, 2
HEAD_WIDTH = 32


@dataclass(frozen=True)
class VLMSize:
    """Widths and numbers of layers; widths are multiples of `HEAD_WIDTH`."""

    width: int = 96
    layers: int = 3
    inner: int = 256
    vision_width: int = 96
    vision_layers: int = 3
    vision_inner: int = 256
    deepstack: bool = True
    """True adds the features of the first vision layer to the first layer of the language model."""
    side: int = PIXELS
    """Pixels of the side of a picture, which has `(side / PATCH)^2` position embeddings."""


END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = (PAD, "<|im_start|>", END, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
JSON_PIECES = ('[{"bbox_2d": [', '], "label": "', '"}, {"bbox_2d": [', '"}]', "]}]")
"""The text between the numbers and labels of boxes: a token each, since every token costs a step."""
ROLES = ("system\n", "user\n", "assistant\n")
WORDS = (
    *(
        *"ABCDEFHKLOTX",
        "Locate",
        "Detect",
        "Read",
        "How",
        "What",
        "Which",
        "the",
        "all",
        "is",
        "does",
        "one",
        "out",
        "way",
    ),
    *("red", "green", "blue", "yellow", "circle", "circles", "square", "squares", "triangle", "triangles", "shapes"),
    *("many", "tall", "tallest", "shortest", "bar", "text", "odd", "move", "seconds"),
    *("top", "bottom", "left", "right", "up", "down"),
)
WORLD_PIECES = (
    ']}, {"bbox_2d": [',
    *("click(", "scroll('", "type('", "')"),
    *("bar | height <0x0A> ", " <0x0A> ", " | "),
    *("\\begin{tabular}{", "\\multicolumn{2}{c}{", "\\multirow{2}{*}{", "}\\end{tabular}", "\\end{tabular}", "\\\\"),
)
"""Pieces of the answers of `mmrl_shapeworld.worlds`, a token each in the model of those worlds."""
WORLD_WORDS = (
    *("orange", "purple", "diamond", "cross", "small", "large", "a", "and"),
    *("tiny", "big", "disc", "box", "upper", "lower"),
    *("Open", "Write", "Describe", "as", "chart", "on", "page", "table"),
)

JUDGE_PIECES = ("<think>", "</think>")
JUDGE_WORDS = ("number", "size", "colour", "shape", "place", "most", "again")
"""Further words of the judges of `mmrl_shapeworld.worlds.picture_pairs`."""
_WORDS_AND_NUMBERS = r"[0-9]+, |[0-9]+| ?[A-Za-z]+| ?[^A-Za-z0-9]"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def tokenizer(of_worlds: bool = False) -> PreTrainedTokenizerFast:
    """Whole words of ShapeWorld, numbers up to 56 with and without a comma, and bytes for all else.

    Any text comes back exactly as it was. Nothing is trained, so every process makes the same one. `of_worlds` adds the
    words and pieces of `mmrl_shapeworld.worlds` behind the others, whose numbers stay as they are.
    """
    return exact_tokenizer(
        (*_pieces(), *(_pieces_of_worlds() if of_worlds else ())),
        (*JSON_PIECES, *ROLES, *(WORLD_PIECES if of_worlds else ())),
        _WORDS_AND_NUMBERS,
    )


def judge_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of the worlds with the words of judges behind the others, and numbers after a space."""
    words = (each for word in JUDGE_WORDS for each in (word, f" {word}"))
    numbers = (f" {number}" for number in range(10))
    return exact_tokenizer(
        (*_pieces(), *_pieces_of_worlds(), *JUDGE_PIECES, *words, *numbers),
        (*JSON_PIECES, *ROLES, *WORLD_PIECES, *JUDGE_PIECES),
        f" [0-9]|{_WORDS_AND_NUMBERS}",
    )


def exact_tokenizer(texts: Iterable[str], fixed: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each of the texts, and bytes for all else.

    Args:
        texts: The texts that are one token each.
        fixed: Texts that are never split.
        pattern: The regular expression of a piece of all other text, which is one token if it is one of `texts`.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces: dict[str, None] = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    for text in texts:
        ((piece, _),) = byte_level.pre_tokenize_str(text)
        pieces[piece] = None
    vocabulary = {piece: number for number, piece in enumerate(pieces, start=len(SPECIAL))}
    vocabulary.update((special, number) for number, special in enumerate(SPECIAL))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    split = Regex("|".join([*(re.escape(piece) for piece in fixed), pattern]))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(split, "isolated"), byte_level])
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[special for special in SPECIAL if special not in (END, PAD)],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _pieces() -> Iterable[str]:
    yield from JSON_PIECES
    yield from ROLES
    for number in range(PIXELS + 1):
        yield str(number)
        yield f"{number}, "
    for word in WORDS:
        yield word
        yield f" {word}"
    yield from (" +", " -", " =")


def _pieces_of_worlds() -> Iterable[str]:
    yield from WORLD_PIECES
    for word in WORLD_WORDS:
        yield word
        yield f" {word}"


def processor(of_worlds: bool = False, words: PreTrainedTokenizerFast | None = None) -> Qwen3VLProcessor:
    """Pictures and frames of 56×56 pixels as they are, others scaled to about as many; all frames of a clip.

    `words` is its tokenizer; by default, that of ShapeWorld's questions, and with `of_worlds` that of
    `mmrl_shapeworld.worlds`.
    """
    area = PIXELS * PIXELS
    shared = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    words = words or tokenizer(of_worlds)
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size={"shortest_edge": area, "longest_edge": area}, **shared),
        tokenizer=words,
        video_processor=Qwen3VLVideoProcessor(
            size={"shortest_edge": 2 * area, "longest_edge": 2 * FRAMES * area},
            fps=FRAMES_PER_SECOND,
            min_frames=2,
            max_frames=2 * FRAMES,
            cap_pixels_per_frame=False,
            **shared,
        ),
        chat_template=CHAT_TEMPLATE,
    )


def build(words: PreTrainedTokenizerFast, size: VLMSize | None = None) -> Qwen3VLForConditionalGeneration:
    """Return an untrained model, of 1.0 M parameters by default.

    Its patches have 7×7 pixels, 64 of them by default; the language model sees four as one.
    """
    size = size or VLMSize()
    ids = {special: words.convert_tokens_to_ids(special) for special in SPECIAL}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(words),
            "hidden_size": size.width,
            "intermediate_size": size.inner,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.width // HEAD_WIDTH,
            "num_key_value_heads": size.width // HEAD_WIDTH,
            "head_dim": HEAD_WIDTH,
            "max_position_embeddings": 1024,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [6, 5, 5]},
            "pad_token_id": ids[PAD],
            "eos_token_id": ids[END],
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": size.vision_layers,
            "hidden_size": size.vision_width,
            "intermediate_size": size.vision_inner,
            "num_heads": size.vision_width // HEAD_WIDTH,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": size.width,
            "num_position_embeddings": (size.side // PATCH) ** 2,
            "deepstack_visual_indexes": [0] if size.deepstack else [],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=ids[END], pad_token_id=ids[PAD]
    )
    return model
