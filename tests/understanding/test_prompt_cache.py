"""The cache of encoded prompts, and its eviction."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from mmrl.data.sample import Sample
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.prompt_encoder import PromptCache


def prompt(tokens: int) -> EncodedPrompt:
    return EncodedPrompt({"input_ids": torch.zeros(1, tokens, dtype=torch.long)}, 0, 0)


def test_prompts_are_cached_by_object_identity():
    cache, sample, encoded = PromptCache(), Sample("a", prompt="What?"), prompt(3)
    assert cache.get(sample) is None
    cache.put(sample, encoded)
    assert cache.get(sample) is encoded
    assert cache.get(replace(sample)) is None


def test_least_recently_used_prompts_are_evicted_first():
    cache = PromptCache(max_bytes=3 * 8)
    samples = [Sample(name) for name in "abcd"]
    for sample in samples[:3]:
        cache.put(sample, prompt(1))
    assert cache.get(samples[0]) is not None
    cache.put(samples[3], prompt(1))
    assert [cache.get(sample) is not None for sample in samples] == [True, False, True, True]
    cache.put(Sample("wide"), prompt(3))
    assert [cache.get(sample) for sample in samples] == [None] * 4


def test_oversized_prompts_are_not_cached():
    cache, small, large = PromptCache(max_bytes=8), Sample("small"), Sample("large")
    cache.put(small, prompt(1))
    cache.put(large, prompt(2))
    assert cache.get(large) is None
    assert cache.get(small) is not None


def test_a_copied_cache_is_empty_and_takes_as_much():
    cache, sample = PromptCache(max_bytes=16), Sample("a")
    cache.put(sample, prompt(1))
    copied = copy.deepcopy(cache)
    assert copied.get(sample) is None and cache.get(sample) is not None
    copied.put(sample, prompt(2))
    assert copied.get(sample) is not None
