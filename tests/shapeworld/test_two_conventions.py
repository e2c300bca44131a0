"""Calculations that two kinds of authors read in two ways."""

from __future__ import annotations

import re

import pytest
import torch

from mmrl.build.policies import build_policy
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning import two_conventions
from mmrl_shapeworld.reasoning.right_chain import RightChain


def in_order(prompt: str) -> int:
    """The value of a calculation from left to right."""
    value = int(prompt[0])
    for operator, digit in zip(prompt[1:-1:2], prompt[2::2], strict=True):
        value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[operator]
    return value % 10


def product_first(prompt: str) -> int:
    """The value of a calculation whose product is taken before all else."""
    return in_order(re.sub(r"(\d)\*(\d)", lambda match: str(int(match[1]) * int(match[2]) % 10), prompt))


@pytest.mark.parametrize("split", two_conventions.NAMES)
def test_the_answer_is_that_of_the_author_and_never_that_of_the_other(split):
    found = splits.samples(split)
    for sample in found:
        ways = {"product-first": product_first(sample.prompt), "in-order": in_order(sample.prompt)}
        assert len(set(ways.values())) == 2 and sample.answer == ways[sample.source]
    share = sum(sample.source == "product-first" for sample in found) / len(found)
    assert share == pytest.approx(two_conventions.PRODUCT_FIRST, abs=0.08)


def test_no_prompt_is_in_two_splits():
    prompts = {
        part: {s.prompt for s in splits.samples(f"{two_conventions.PREFIX}{part}")} for part in two_conventions.PARTS
    }
    assert len(set().union(*prompts.values())) == sum(map(len, prompts.values()))


def test_demonstrations_of_training_are_solved_and_habitual_ones_only_without_a_hard_step():
    def solved(sample):
        item = RewardInput("0", 0, sample.prompt, text=sample.demonstration, references=sample.metadata)
        return RightChain().score_one(item)

    assert all(solved(sample) for sample in splits.samples("sums-conventions-train"))
    habitual = [solved(sample) for sample in splits.samples("sums-conventions-habitual")]
    assert 0.6 < sum(habitual) / len(habitual) < 0.95
    with pytest.raises(KeyError, match="two conventions 'sums-conventions-hard': choose one of sums-conventions-train"):
        two_conventions.samples("sums-conventions-hard")


@pytest.mark.integration
def test_the_shipped_model_calculates_in_both_ways():
    policy = build_policy(
        VLMConfig(model="shapeworld:sums-conventions", train="full"), TokenSamplingConfig(max_new_tokens=32)
    )
    chosen = splits.samples("sums-conventions-development")[:64]
    with torch.no_grad():
        rollout = policy.rollout([RolloutRequest(each, 4, n) for n, each in enumerate(chosen)], seed=0)
    by_source = {"in-order": [], "product-first": []}
    for sample, text in zip(rollout.samples, rollout.media, strict=True):
        by_source[sample.source].append(text.endswith(f"</think>{sample.answer}"))
    shares = {source: sum(right) / len(right) for source, right in by_source.items()}
    assert 0.3 < shares["in-order"] < 0.75 and 0.1 < shares["product-first"] < 0.5
