"""Learnt contributions of turns: they sum to outcomes, and fall on the turns that decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.environments.attributed_progress import AttributedProgress
from mmrl.errors import ConfigError
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.learned.progress_estimator import (
    EstimatorShape,
    PlayedEpisode,
    PlayedTurn,
    ProgressEstimator,
    batch_of,
    explained_variance,
    fit_progress,
    read_estimator,
    turn_features,
    write_estimator,
)

SHAPE = EstimatorShape(buckets=8, hidden=12)


def episodes(count: int, seed: int) -> list[PlayedEpisode]:
    """Return episodes of four turns, of which one, at a random place, decides: with `key` they succeed."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = ["grass"] * 4
        good = bool(rng.random() < 0.5)
        words[int(rng.integers(4))] = "key" if good else "stone"
        turns = tuple(PlayedTurn("look", word) for word in words)
        found.append(PlayedEpisode("find a key", turns, float(good)))
    return found


@pytest.fixture(scope="module")
def fitted() -> ProgressEstimator:
    return fit_progress(episodes(300, 0), SHAPE, steps=150, lr=1e-2)


def test_contributions_sum_to_the_outcome_and_fall_on_the_turn_that_decides(fitted):
    unseen = episodes(100, 1)
    assert explained_variance(fitted, unseen) > 0.9
    for episode in unseen[:20]:
        shares = fitted.contributions(episode)
        place = next(n for n, turn in enumerate(episode.turns) if turn.answer != "grass")
        others = [abs(each) for n, each in enumerate(shares[1:], 1) if n != place]
        assert len(shares) == 4 and (max(others, default=0) < 0.2 or place == 0)
        if place > 0:  # against what the first turn, which every episode has, got
            assert (shares[place] > 0.2) == bool(episode.outcome)


@pytest.mark.integration
def test_labels_without_a_reason_explain_nothing():
    rng = np.random.default_rng(3)
    random = [PlayedEpisode(each.prompt, each.turns, float(rng.random() < 0.5)) for each in episodes(300, 0)]
    estimator = fit_progress(random, SHAPE, steps=60)
    assert explained_variance(estimator, episodes(100, 1)) < 0.3


def test_later_turns_change_no_earlier_contribution(fitted):
    (episode,) = episodes(1, 5)
    shorter = PlayedEpisode(episode.prompt, episode.turns[:2])
    assert fitted.contributions(shorter) == pytest.approx(fitted.contributions(episode)[:2], abs=1e-6)
    features, present = batch_of([episode, shorter], SHAPE.buckets)
    assert torch.equal(fitted(features, present)[1, 2:], torch.zeros(2))
    assert fitted.contributions(PlayedEpisode("find a key", ())) == []


def test_features_relate_a_turn_to_the_prompt_and_to_earlier_turns():
    turns = (PlayedTurn("open 4", "red square"), PlayedTurn("open 4", "red circle"), PlayedTurn("take", ""))
    rows = turn_features(PlayedEpisode("red circle: 4 7", turns), 8)
    assert rows[:, 16:].tolist() == pytest.approx(
        np.array([[0.5, 0, 0.5, 0, 0, 1], [1, 1, 0.5, 1, 0, 1], [0, 0, 0, 0, 0, 0]])
    )
    assert rows[:, :8].sum(1).tolist() == [2, 2, 1] and rows[:, 8:16].sum(1).tolist() == [2, 2, 0]


def test_outcomes_that_do_not_differ_are_an_error():
    same = [PlayedEpisode(each.prompt, each.turns, 1.0) for each in episodes(10, 0)]
    with pytest.raises(RewardError, match="10 episodes, whose outcomes do not differ"):
        fit_progress(same, SHAPE, steps=1)


class Words:
    name, max_turns, instructions, deadline_s = "words", 4, "", None

    def begin(self, sample, reader):
        return self

    def step(self, action):
        return Step(None if action == "end" else Observation("grass"), {}, {"effect": float(action == "look")})

    def outcome(self):
        return {"success": True}


def test_an_environment_gives_each_turn_its_contribution(fitted, tmp_path):
    write_estimator(tmp_path / "made", fitted, {"explained": 0.9})
    environment = AttributedProgress(Words(), str(tmp_path / "made"))
    episode = environment.begin(Sample("s", prompt="find a key"), MediaReader(MediaBudget()))
    executed = [episode.step(action).rewards["executed"] for action in ("look", "sleep", "end")]
    assert executed == [1.0, 0.0, 0.0]
    turns = (PlayedTurn("look", "grass"), PlayedTurn("sleep", "grass"), PlayedTurn("end", ""))
    expected = read_estimator(tmp_path / "made").contributions(PlayedEpisode("find a key", turns))
    assert episode.outcome()["turn_rewards"]["contribution"] == pytest.approx(expected)


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no estimator of progress"):
        AttributedProgress(Words(), str(tmp_path))
