"""The environment of several attempts: what each is worth, and what the policy reads in between."""

from __future__ import annotations

import math

import pytest

from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch, load_environment
from mmrl.environments.attempts import MESSAGE
from mmrl.errors import ConfigError
from mmrl.rewards import load
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from tests.environments.worlds import READER

SEVEN = Sample("seven", prompt="3+4=", answer=7)


def played(*actions: str | None, **args: object):
    batch = EpisodeBatch(load_environment("attempts", reward="numeric", **args), [SEVEN], READER)
    return [batch.step({0: action})[0] for action in actions], batch


def test_an_attempt_is_rewarded_for_what_it_is_worth_and_for_what_it_gained():
    (first, second), batch = played("8", "<think>3+4=7</think>7")
    assert first.observation.text == MESSAGE and second.observation is None and batch.live == []
    assert (first.rewards, second.rewards) == ({"right": 0, "progress": 0}, {"right": 1, "progress": 1})
    assert batch.outcomes() == [{"void": None, "success": 1, "first": 0, "attempts": (0, 1)}]
    (_, worse), _ = played("7", "I cannot say")
    assert worse.rewards == {"right": 0, "progress": -1}


def test_more_attempts_each_read_the_same_message():
    (first, second, third), batch = played("8", "7", "7", max_turns=3, message="wait")
    assert first.observation.text == second.observation.text == "wait" and third.observation is None
    assert third.rewards == {"right": 1, "progress": 0} and batch.outcomes()[0]["attempts"] == (0, 1, 1)


def test_an_attempt_that_is_cut_off_is_worth_nothing_and_is_the_last():
    (_, second), batch = played("7", None, max_turns=3)
    assert second.observation is None and second.rewards == {"right": 0, "progress": -1}
    assert batch.outcomes()[0]["success"] == 0


def test_an_attempt_that_could_not_be_scored_makes_the_episode_void():
    batch = EpisodeBatch(load_environment("attempts", reward="numeric"), [Sample("odd", answer="seven or so")], READER)
    batch.step({0: "7"})
    assert batch.outcomes()[0]["void"] == "error" and "could not score" in batch.outcomes()[0]["detail"]


@pytest.mark.parametrize(
    "args, message",
    [
        ({"reward": "cosine_length", "reward_args": {"limit": 9}}, "cosine_length judges no single answer"),
        ({"reward": "nothing"}, r"environment\.args\.reward"),
        ({"max_turns": 1}, "1 attempts; there are two or more"),
    ],
)
def test_rewards_that_cannot_judge_an_answer_are_refused(args, message):
    with pytest.raises(ConfigError, match=message):
        load_environment("attempts", **args)


def test_the_gain_is_the_last_attempt_less_the_first():
    gain = load("attempt_gain")
    items = [RewardInput("0", 0, "?", text="7", outcome={"attempts": values}) for values in ((0, 1), (1, 0, 0), (1,))]
    assert gain.score(items).values["attempt_gain"].tolist() == [1, -1, 0]
    failed = gain.score([RewardInput("0", 0, "?", text="7", outcome={"success": True})])
    assert "the outcome has no `attempts`" in failed.detail[0]["attempt_gain"]


def attempts(*values: float, text: str = "7") -> RewardInput:
    return RewardInput("0", 0, "?", text=text, outcome={"attempts": values})


def test_reflection_is_worth_more_where_it_corrects_than_where_it_keeps():
    effect = load("reflection_effect")
    items = [attempts(0, 1), attempts(1, 1), attempts(0, 0), attempts(1, 0), attempts(1)]
    assert effect.score(items).values["reflection_effect"].tolist() == [0.5, 0.25, 0, -0.25, 0]
    assert load("reflection_effect", right_at=0.5).score([attempts(0.2, 0.6)]).values["reflection_effect"] == [0.5]


def test_reflection_of_the_target_length_is_best():
    length = load("reflection_length", target=4, most=6)
    items = [attempts(0, 1, text=" ".join("a" * count)) for count in (4, 6, 2, 40)] + [attempts(1, text="a b c d")]
    expected = [1, math.exp(-1), math.exp(-1), 0, 0]
    assert length.score(items).values["reflection_length"].tolist() == pytest.approx(expected)
    with pytest.raises(RewardError, match="0 < target < most"):
        load("reflection_length", target=6, most=6)
