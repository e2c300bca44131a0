"""A reward that depends on another one fails as that does: with its kind, and with the chance of another try."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrl.rewards import Reward, Status
from mmrl.rewards.rules.adaptive_spread import AdaptiveSpread
from mmrl.rewards.rules.group_lengths import ShortestRight
from mmrl.rewards.rules.lengths import CosineLength
from mmrl.rewards.rules.milestones import Parseable, Progressive
from mmrl.rewards.rules.thinking_modes import ThinkingMode

from .single_answer import ask

OTHER = f"{Path(__file__).with_name('word_reward.py')}:WordReward"


@pytest.mark.parametrize(
    "reward",
    [
        CosineLength(100, of=OTHER, unit="characters"),
        ShortestRight(of=OTHER, unit="characters"),
        ThinkingMode(of=OTHER),
        Parseable(of=OTHER),
        Progressive([{"reward": OTHER}]),
        AdaptiveSpread(of=OTHER),
    ],
    ids=lambda reward: reward.name,
)
def test_the_failure_is_that_of_the_other_reward(reward: Reward):
    output = reward.score([ask("right"), ask("down"), ask("wrong")])
    assert output.status[reward.name] == [Status.OK, Status.ERROR, Status.OK]
    failure = output.failures[1][reward.name]
    assert failure.kind == "http_503" and failure.transient
    assert "failed: " in str(output.detail[1][reward.name]) and not output.failures[0]
