"""The language models that write traces: real Qwen3-VL classes, with a vision tower that is never shown a picture.

A vision-language model of one layer of eyes and two of language is what a policy of the kind `vlm` loads, and text
alone goes through its language model. `tools.shapeworld_pretrain.reasoner` warm-starts it.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.reasoning.calculations import FAMILIES
from mmrl_shapeworld.reasoning.traces import WAIT

SIZE = vlm_model.VLMSize(
    width=64, layers=2, inner=256, vision_width=32, vision_layers=1, vision_inner=32, deepstack=False
)
TAGS = ("<think>", "</think>")
PATTERN = r" ?[0-9]+|[A-Za-z]+|[^A-Za-z0-9]"
CALL_PIECES = (
    *("<tool_call>", "</tool_call>", "<tool_response>\n", "\n</tool_response>"),
    *('{"name": "evaluate", "arguments": {"text": "', '"}}', "was not", "understood: ", "carried out: ", "too long"),
)
"""Pieces of calls of a tool and of their results, a token each in the model of `calculation_calls`."""


def tokenizer(more: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """A token for each value with and without a space before it, for each tag and `wait`, and bytes for all else.

    Any text comes back exactly as it was. Nothing is trained, so every process makes the same one. `more` pieces have a
    token each, too.
    """
    return vlm_model.exact_tokenizer((*_pieces(), *more), (*more, *TAGS, *vlm_model.ROLES), PATTERN)


def _pieces() -> Iterable[str]:
    yield from TAGS
    yield from vlm_model.ROLES
    yield WAIT
    for value in range(max(family.modulus for family in FAMILIES.values())):
        yield str(value)
        yield f" {value}"


def processor(more: Iterable[str] = ()) -> Qwen3VLProcessor:
    """Return the processor of the embedded VLM with the tokenizer of traces, and of `more` pieces."""
    return vlm_model.processor(words=tokenizer(more))


def build(words: PreTrainedTokenizerFast) -> Qwen3VLForConditionalGeneration:
    """Return an untrained model of two layers of width 64."""
    return vlm_model.build(words, SIZE)
