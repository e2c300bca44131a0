"""Prompts that say how much each reward counts."""

from __future__ import annotations

import math

import pytest

from mmrl.build.reward_suites import build_reward_suite
from mmrl.data.directions import directed_samples, direction_of_angle, with_direction
from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError
from mmrl.rewards import reward_input
from mmrl.rewards.core.routing import SharedLoader

REWARDS = [RewardChoice("numeric"), RewardChoice("length", 2.0, {"limit": 2, "slack": 8, "unit": "words"})]


def test_angles_by_hand():
    assert direction_of_angle(90) == pytest.approx((0.0, 1.0), abs=1e-12)
    assert direction_of_angle(60) == pytest.approx((0.5, math.sqrt(3) / 2))


def test_the_total_is_the_score_in_the_direction():
    """0.6 x 1 (right) + 0.8 x 2 x 0.75 (4 words of 2 to 10): 1.8; another direction has another total."""
    sample = Sample("a", prompt="2+4=", answer=6, metadata={"kept": 1})
    directed = [with_direction(sample, REWARDS, vector) for vector in ((0.6, 0.8), (1.0, 0.0))]
    assert directed[0].prompt == "Weights of numeric, length: 60, 80.\n2+4="
    assert directed[0].metadata == {"kept": 1, "direction": {"numeric": 0.6, "length": 0.8}}
    suite = build_reward_suite((), directed, SharedLoader())
    items = [reward_input(each, "I say it's 6", n, str(n)) for n, each in enumerate(directed)]
    found = suite.score(items)
    suite.close()
    assert found.values["total"] == pytest.approx([0.6 + 0.8 * 2 * 0.75, 1.0], abs=1e-6)


def test_directions_are_spread_over_samples_and_survive_a_file(tmp_path):
    samples = [Sample(str(n), prompt=f"{n}+1=", answer=n + 1) for n in range(300)]
    directed = directed_samples(samples, REWARDS, angles=3, text="{values};", seed=1)
    begins = [each.prompt.partition(";")[0] for each in directed]
    assert {text: begins.count(text) > 70 for text in set(begins)} == {"100, 0": True, "71, 71": True, "0, 100": True}
    assert [each.prompt.partition(";")[2] for each in directed] == [each.prompt for each in samples]
    assert directed == directed_samples(samples, REWARDS, angles=3, text="{values};", seed=1)
    assert directed != directed_samples(samples, REWARDS, angles=3, text="{values};", seed=2)
    write_samples(directed, tmp_path / "directed.jsonl")
    assert read_samples(tmp_path / "directed.jsonl")[0].rewards == directed[0].rewards


def test_what_is_no_direction_is_refused():
    sample = Sample("a", prompt="2+4=")
    for wrong in ((1.0,), (0.5, 0.5), (-0.6, 0.8)):
        with pytest.raises(DataError, match="expected a vector of length 1 with 2 entries of 0 or above"):
            with_direction(sample, REWARDS, wrong)
    with pytest.raises(DataError, match="put before a prompt, and it has none"):
        with_direction(Sample("b", messages=({"role": "user", "content": "?"},)), REWARDS, (1.0, 0.0))
    with pytest.raises(DataError, match="two rewards and at least two angles"):
        directed_samples([sample], REWARDS, angles=1)
