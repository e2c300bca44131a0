"""The teacher of sums: traces with one habit, the model that learnt them, and the run that teaches it again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mmrl.build.policies import build_policy
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import splits
from tools.shapeworld_pretrain import taught_sums

HABITS = ("-8", "-9")


def right(text: str, answer: int) -> bool:
    return text.rpartition("</think>")[2] == str(answer)


@pytest.mark.parametrize(
    ("split", "least", "most"),
    [("sums-habitual", 0.17, 0.25), ("sums-mostly-habitual", 0.12, 0.17), ("sums-half-habitual", 0.07, 0.12)],
)
def test_demonstrations_are_in_full_and_wrong_by_the_habit_alone(split, least, most):
    samples = splits.samples(split)
    assert [each.prompt for each in samples] == [each.prompt for each in splits.samples("sums-train")]
    assert all(each.demonstration.startswith("<think>") and ";</think>" in each.demonstration for each in samples)
    wrong = [each for each in samples if not right(each.demonstration, each.answer)]
    assert least < len(wrong) / len(samples) < most
    assert all(any(habit in each.prompt for habit in HABITS) for each in wrong)


@pytest.mark.integration
def test_the_shipped_teacher_writes_in_full_and_has_the_habit():
    policy = build_policy(
        VLMConfig(model="shapeworld:sums-taught", train="full"), TokenSamplingConfig(max_new_tokens=64)
    )
    chosen = splits.samples("sums-development")[:192]
    with torch.no_grad():
        texts = policy.rollout([RolloutRequest(each, 1, n) for n, each in enumerate(chosen)], seed=0).media
    habitual = [any(habit in each.prompt for habit in HABITS) for each in chosen]
    scores = np.array([right(text, each.answer) for text, each in zip(texts, chosen, strict=True)])
    assert np.mean([";</think>" in text for text in texts]) > 0.95
    assert scores[~np.array(habitual)].mean() > 0.85 > 0.5 > scores[habitual].mean()


@pytest.mark.integration
def test_the_teacher_is_taught_by_its_recipe(tmp_path: Path):
    taught_sums.train(tmp_path / "taught", iterations=2)
    policy = build_policy(VLMConfig(model=str(tmp_path / "taught"), train="full"), TokenSamplingConfig())
    assert policy.parameters_to_train() and not (tmp_path / "taught" / "trainer").exists()
