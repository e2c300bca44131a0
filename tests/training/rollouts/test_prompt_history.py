"""Rewards against the last ones of their prompt."""

from __future__ import annotations

import json
import statistics

import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.training.rollouts.advantage_estimator import PromptHistory, build_history

NAN = float("nan")


def test_prompt_history_uses_the_prompt_spread_once_long_enough():
    history = PromptHistory(buffer=4, min_count=3)
    first = history.advantages(torch.tensor([1.0, 3.0, 8.0]), ["a", "a", "b"])
    batch = [1.0, 3.0, 8.0]
    expected = [(r - statistics.fmean(batch)) / (statistics.pstdev(batch) + 1e-6) for r in batch]
    assert first.tolist() == pytest.approx(expected, rel=1e-6)
    second = history.advantages(torch.tensor([5.0, 2.0, NAN]), ["a", "a", "b"])
    own = [1.0, 3.0, 5.0, 2.0]  # the new ones count too
    expected = [(r - statistics.fmean(own)) / (statistics.pstdev(own) + 1e-6) for r in (5.0, 2.0)]
    assert second.tolist() == pytest.approx([*expected, 0.0], rel=1e-6)
    third = history.advantages(torch.tensor([9.0]), ["a"])  # the oldest is forgotten
    own = [3.0, 5.0, 2.0, 9.0]
    assert third.item() == pytest.approx((9 - statistics.fmean(own)) / (statistics.pstdev(own) + 1e-6), rel=1e-6)


def test_equal_rewards_have_zero_advantages():
    history = PromptHistory(buffer=8, min_count=2)
    assert not history.advantages(torch.full((5,), 0.1), ["a"] * 5).any()


def test_saved_history_resumes_exactly():
    whole, cut = PromptHistory(5, 3), PromptHistory(5, 3)
    draws = [torch.rand(6, generator=torch.Generator().manual_seed(n)) for n in range(4)]
    ids = ["a", "b", "a", "c", "b", "a"]
    before = [whole.advantages(each, ids) for each in draws]
    for each in draws[:2]:
        cut.advantages(each, ids)
    resumed = PromptHistory(5, 3)
    resumed.load_state_dict(json.loads(json.dumps(cut.state_dict())))
    for each, expected in zip(draws[2:], before[2:], strict=True):
        assert torch.equal(resumed.advantages(each, ids), expected)
    empty = PromptHistory(5, 3)
    assert not torch.equal(empty.advantages(draws[2], ids), before[2])  # the control


def test_prompt_history_is_used_by_running_only():
    assert build_history(AdvantageConfig()) is None
    assert isinstance(build_history(AdvantageConfig(name="running")), PromptHistory)
