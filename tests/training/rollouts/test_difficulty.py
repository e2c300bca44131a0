"""Weights by success rate, against the numbers of the papers' code."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.training.rollouts.advantage_estimator import DifficultyWeighting, difficulty_weights
from tests.training.token_run import Exact, collect, source

HALF = math.sqrt(0.5)
TABLE = {  # at 0, 1/4, 1/2, 3/4 and 1, by hand
    "easy": [0.0, HALF, 1.0, 1.0, 1.0],
    "medium": [0.0, HALF, 1.0, HALF, 0.0],
    "hard": [0.25, 1.0, 1.0, HALF, 0.0],
    "parabola": [0.0, 0.75, 1.0, 0.75, 0.0],
    "easy_only": [0.0, 0.0, 1.0, 1.0, 1.0],
    "medium_only": [0.0, 1.0, 1.0, 1.0, 0.0],
    "hard_only": [0.0, 1.0, 1.0, 0.0, 0.0],
}


@pytest.mark.parametrize("curve", TABLE)
def test_difficulty_weights_equal_the_papers(curve):
    rates = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    torch.testing.assert_close(difficulty_weights(rates, curve), torch.tensor(TABLE[curve]))


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1), st.sampled_from(list(TABLE)))
def test_difficulty_weights_lie_in_0_to_1_and_mirror(rates, curve):
    rate = torch.tensor(rates, dtype=torch.float64)
    weights = difficulty_weights(rate, curve)
    assert bool(((weights >= 0) & (weights <= 1)).all())
    inner = (rate > 0) & (rate < 1)
    mirrored = difficulty_weights(1 - rate, "hard")[inner]
    torch.testing.assert_close(difficulty_weights(rate, "easy")[inner], mirrored, atol=1e-9, rtol=0)


def test_success_rate_is_over_scored_answers_of_a_group():
    total = torch.tensor([1.0, 0.0, 0.9, float("nan"), 1.0, 1.0, float("nan")])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    weights = DifficultyWeighting(("parabola",), success=1.0).weights(total, groups, 0.0)
    torch.testing.assert_close(weights, torch.tensor([8 / 9] * 4 + [0.0] * 3))


def test_stages_last_equal_parts_of_training():
    weighting = DifficultyWeighting(("easy", "medium", "hard"), 1.0)
    stages = [weighting.stage(step / 9) for step in range(9)] + [weighting.stage(1.0)]
    assert stages == ["easy"] * 3 + ["medium"] * 3 + ["hard"] * 4


@pytest.mark.parametrize("curve", ["easy", "hard"])
def test_group_advantages_are_scaled_by_difficulty(curve):
    plain = collect(source(reward=Exact()), 2)
    scaled = collect(source(reward=Exact(), weighting=DifficultyWeighting((curve,), 1.0)), 2)
    for one, other in zip(plain.micro_batches, scaled.micro_batches, strict=True):
        for group in one.rollout.group_index.unique():
            mine = one.rollout.group_index == group
            right = [text == s.answer for text, s in zip(one.rollout.media, one.rollout.samples, strict=True)]
            rate = torch.tensor(right)[mine].float().mean()
            expected = one.advantages[mine] * difficulty_weights(rate[None], curve)
            torch.testing.assert_close(other.advantages[mine], expected)
            torch.testing.assert_close(
                other.step_advantages[mine], expected[:, None].where(other.rollout.mask[mine], 0.0)
            )
    assert any(batch.advantages.any() for batch in plain.micro_batches)
