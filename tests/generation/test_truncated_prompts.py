"""Prompts that are longer than every text encoder are named before training."""

from __future__ import annotations

import logging

import pytest
from diffusers import DiffusionPipeline
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from mmrl.config.sampling import SamplingConfig
from mmrl.data import Sample
from mmrl.generation.diffusion.call_arguments import find_truncated_prompts, token_limits, warn_truncated_prompts
from mmrl_shapeworld.shipped_models import PIPELINE
from mmrl_shapeworld.splits import samples

LONG = "two red circles " * 3 + "and a blue square"  # CLIP reads 12 tokens here, the T5 max_sequence_length


@pytest.fixture(scope="module")
def pipeline():
    """Its third tokenizer, which knows one token of silence, gives way to one that reads words."""
    loaded = DiffusionPipeline.from_pretrained(PIPELINE)
    words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    loaded.register_modules(tokenizer_3=PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?"))
    return loaded


def sampling(length):
    return SamplingConfig(pipeline_args={"max_sequence_length": length})


def test_prompt_is_truncated_if_no_encoder_reads_it_whole(pipeline):
    prompts = [Sample(id="short", prompt="a red circle"), Sample(id="long", prompt=LONG)]
    cut, most = find_truncated_prompts(pipeline, sampling(1), prompts)
    assert list(cut) == ["long"] and most == 12 < cut["long"]
    assert find_truncated_prompts(pipeline, sampling(64), prompts) == ({}, 64)
    assert cut["long"] == 15  # 13 words, and a token at each end
    assert not find_truncated_prompts(pipeline, sampling(13), prompts)[0]
    assert find_truncated_prompts(pipeline, sampling(12), prompts)[0].keys() == {"long"}


def test_prompt_limits_are_those_of_the_call_except_clip(pipeline):
    assert token_limits(pipeline, sampling(5)) == {"tokenizer": 12, "tokenizer_2": 12, "tokenizer_3": 5}
    assert token_limits(pipeline, SamplingConfig())["tokenizer_3"] == 256  # the default of the pipeline's call


def test_absent_encoders_have_no_limit(pipeline):
    whole = pipeline.text_encoder_3
    pipeline.register_modules(text_encoder_3=None)
    try:
        assert find_truncated_prompts(pipeline, sampling(64), [Sample(id="long", prompt=LONG)])[0].keys() == {"long"}
    finally:
        pipeline.register_modules(text_encoder_3=whole)


def test_truncation_warning_counts_and_names_prompts(pipeline, caplog):
    prompts = [Sample(id=f"p{n}", prompt=LONG) for n in range(5)] + samples("validation")
    with caplog.at_level(logging.WARNING):
        warn_truncated_prompts(pipeline, sampling(1), prompts)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"5 of {len(prompts)} prompts are longer than the 12 tokens")
    assert "'p0' (" in record.getMessage() and record.getMessage().endswith("...")


def test_shipped_prompts_fit(pipeline):
    assert find_truncated_prompts(pipeline, sampling(1), samples("train"))[0] == {}
