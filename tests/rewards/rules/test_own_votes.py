"""`own_votes`: the share of a model's further answers that agree, and what cannot vote."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext, reward_input
from mmrl.rewards.rules.own_votes import OwnVotes

SAMPLES = [Sample("a", prompt="3+4="), Sample("b", prompt="5-2=")]


class Voter:
    """A model whose further answers are known."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def answers(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        self.calls.append(([sample.id for sample in samples], seed))
        texts = {"a": ["3+4=7</think>7", "7</think> 7 ", "</think>8", "7"], "b": ["</think>3"] * 4}
        return [texts[sample.id][:draws] for sample in samples]


def scored(*answers: tuple[int, str], **settings):
    items = [reward_input(SAMPLES[which], text, which, f"{row}") for row, (which, text) in enumerate(answers)]
    voter = Voter()
    reward = OwnVotes(**settings)
    return reward.score(items, RewardContext(models={reward.models[0]: voter}, seed=5)), voter


def test_each_answer_has_the_share_of_further_answers_that_end_alike():
    found, voter = scored((0, "</think>7"), (0, "4+4=8</think>8"), (1, "</think>3"), (0, "</think>9"), draws=4)
    assert found.values["own_votes"].tolist() == [0.5, 0.25, 1.0, 0.0]  # the vote without an end of reasoning is lost
    assert voter.calls == [(["a", "b"], 5)]


def test_an_answer_that_ends_nowhere_is_invalid_and_never_agrees_with_such_votes():
    found, _ = scored((0, "7"), (0, "3+4=7</think> "), draws=4)
    assert found.status["own_votes"] == [Status.INVALID] * 2 and found.values["own_votes"].tolist() == [0.0, 0.0]


def test_without_a_marker_whole_texts_are_compared():
    found, _ = scored((0, "7"), (0, "7</think>7"), draws=4, marker="")
    assert found.values["own_votes"].tolist() == [0.25, 0.0]


def test_it_names_the_model_that_votes_and_needs_one():
    assert OwnVotes(model="start").models == ("start",)
    items = [reward_input(SAMPLES[0], "</think>7", 0, "x")]
    assert OwnVotes().score(items, RewardContext()).status["own_votes"] == [Status.ERROR]
    with pytest.raises(RewardError, match="draws is 0"):
        OwnVotes(draws=0)
