"""Turns that are compared with others of their kind, at any place of an episode."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.data.sample import Sample
from mmrl.errors import RunError
from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout, TurnReward
from mmrl.training.rollouts.turn_advantages import measured_values, turn_advantages


def rollout(*rows: tuple[tuple[float, float], ...]) -> Rollout:
    """Return a rollout of one row for each list of turns, each with its kind and its reward."""
    episodes = [
        EpisodeRecord(
            texts=("x",) * len(turns),
            observations=(),
            outcome={},
            events=tuple(TurnReward(place, "rule", reward) for place, (_, reward) in enumerate(turns)),
            info=tuple({"tag": kind} for kind, _ in turns),
            end=EndOfEpisode.OVER,
        )
        for turns in rows
    ]
    return Rollout(
        samples=[Sample("a", prompt="x")] * len(rows),
        group_index=torch.zeros(len(rows), dtype=torch.int64),
        log_probs=torch.zeros(len(rows), 4),
        mask=torch.ones(len(rows), 4, dtype=torch.bool),
        channel=torch.zeros(len(rows), 4, dtype=torch.int64),
        media=["x"] * len(rows),
        policy_version=0,
        episodes=episodes,
    )


ROWS = rollout(((0, 1), (1, 0), (1, 1)), ((1, 1), (0, 0)))


def credit(by: str | None, groups: tuple[int, int] = (0, 0)) -> torch.Tensor:
    turns = {"discount": 0.0, "compared_by": by}
    return turn_advantages(
        AdvantageConfig.model_validate({"name": "dr_grpo", "turns": turns}),
        advantages=torch.zeros(2),
        total=torch.zeros(2),
        group_index=torch.tensor(groups),
        rollouts=[ROWS],
    )


def test_turns_are_compared_with_those_of_their_kind():
    third = 1 / 3
    expected = [[0.5, -2 * third, third], [third, -0.5, 0.0]]  # kind 0 has 1 and 0; kind 1 has 0, 1 and 1
    torch.testing.assert_close(credit("tag"), torch.tensor(expected))
    assert credit(None).tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]  # at each place the two are alike, or alone


def test_all_turns_of_a_group_may_be_compared():
    pooled = [[0.4, -0.6, 0.4], [0.4, -0.6, 0.0]]  # 1, 0, 1, 1 and 0, whose mean is 0.6
    torch.testing.assert_close(credit("any"), torch.tensor(pooled))
    assert credit("any", (3, 8))[1].tolist() == [0.5, -0.5, 0.0]


def test_groups_are_never_mixed():
    expected = [[0.0, -0.5, 0.5], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(credit("tag", (3, 8)), torch.tensor(expected))


def test_a_value_that_is_not_measured_is_named():
    assert measured_values([ROWS], "tag").tolist() == [[0, 1, 1], [1, 0, 0]]
    with pytest.raises(RunError, match=r"compared_by: the environment measures no 'hue' of a turn: it measures tag"):
        credit("hue")
