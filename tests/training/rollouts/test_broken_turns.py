"""Turns that an environment repaired: their returns are their rewards alone, and end what came before."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.data.sample import Sample
from mmrl.errors import RunError
from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout, TurnReward
from mmrl.training.rollouts.turn_advantages import broken_turns, turn_advantages


def rollout(*matches: tuple[int, ...]) -> Rollout:
    """Return a rollout of one row for each list of matches of its turns."""
    count = len(matches)
    episodes = [
        EpisodeRecord(
            texts=("x",) * len(each),
            observations=(),
            outcome={},
            events=tuple(TurnReward(turn, "match", float(value)) for turn, value in enumerate(each)),
            info=({},) * len(each),
            end=EndOfEpisode.OVER,
        )
        for each in matches
    ]
    return Rollout(
        samples=[Sample("a", prompt="x")] * count,
        group_index=torch.zeros(count, dtype=torch.int64),
        log_probs=torch.zeros(count, 4),
        mask=torch.ones(count, 4, dtype=torch.bool),
        channel=torch.zeros(count, 4, dtype=torch.int64),
        media=["x"] * count,
        policy_version=0,
        episodes=episodes,
    )


def test_turns_without_a_match_are_broken():
    found = broken_turns([rollout((1, 0, 1), (0, 1))], "match")
    assert found.tolist() == [[False, True, False], [True, False, True]]  # the last one is no turn of the second row
    with pytest.raises(RunError, match=r"broken_by: the environment gives no turn reward 'hit': it gives match"):
        broken_turns([rollout((1,))], "hit")


def test_the_outcome_counts_in_returns_of_turns_and_by_itself():
    """A needless call puts the answer off, which `both` holds against it, and `added` does not."""
    rows = rollout((0,), (0, 0))  # an answer at once, and one after a call that was not wanted
    added, both = (
        turn_advantages(
            AdvantageConfig.model_validate({"name": "dr_grpo", "turns": {"discount": 0.5, "outcome": outcome}}),
            advantages=torch.tensor([0.25, 0.5]),
            total=torch.tensor([1.0, 1.0]),
            group_index=torch.zeros(2, dtype=torch.int64),
            rollouts=[rows],
        )
        for outcome in ("added", "both")
    )
    torch.testing.assert_close(added, torch.tensor([[0.25, 0.0], [0.5, 0.5]]))
    # Returns of the first turn are 1 and 0.5, of mean 0.75; the second turn has one row.
    torch.testing.assert_close(both, torch.tensor([[0.25 + 0.25, 0.0], [0.5 - 0.25, 0.5]]))


def test_advantages_compare_returns_that_end_before_a_repair():
    rows = rollout((1, 1, 1), (1, 0, 1), (0, 1, 1))
    plain, broken = (
        turn_advantages(
            AdvantageConfig.model_validate({"name": "dr_grpo", "turns": {"discount": 0.5, "broken_by": by}}),
            advantages=torch.zeros(3),
            total=torch.zeros(3),
            group_index=torch.zeros(3, dtype=torch.int64),
            rollouts=[rows],
        )
        for by in (None, "match")
    )
    returns = torch.tensor([[1.75, 1.5, 1.0], [1.0, 0.0, 1.0], [0.0, 1.5, 1.0]])
    torch.testing.assert_close(broken, returns - returns.mean(0))
    assert plain[2, 0] > broken[2, 0]  # what follows the repair was the merit of the turn that was wrong
