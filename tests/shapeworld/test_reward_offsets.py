"""Rewards that are moved by a constant for each prompt, and what training makes of it."""

from __future__ import annotations

import pytest

from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.reasoning.reward_offsets import OffsetNumeric, moved_rewards, prompt_offset


def answer(text, prompt="2+3"):
    return RewardInput(id="x", group=0, prompt=prompt, text=text, references={"answer": 5})


def test_all_answers_to_a_prompt_are_moved_by_the_same_eighths():
    reward = OffsetNumeric(most=2.0)
    right, wrong = reward.score_one(answer("5")), reward.score_one(answer("4"))
    assert right - wrong == 1.0
    assert reward.score_one(answer("no number")) == wrong
    assert (wrong * 8).is_integer()
    offsets = {prompt_offset(f"{a}+{b}", 1.0) for a in range(10) for b in range(10)}
    assert min(offsets) >= -1.0
    assert max(offsets) <= 1.0
    assert len(offsets) > 10


@pytest.mark.slow
def test_p3o_learns_the_same_and_reinforce_without_a_baseline_does_not():
    assert moved_rewards(0, {"name": "p3o"}, iterations=1)["difference"] == [0.0]
    alone = {"name": "grpo", "advantage": "{name: constant}"}
    assert moved_rewards(0, alone, iterations=1)["difference"][0] > 1e-4
