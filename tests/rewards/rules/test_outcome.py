"""The reward of an episode's outcome, and answers whose episode broke down."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rewards import RewardInput, RewardSuite, load
from mmrl.rewards.core.cache import score_key
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import reward_input, without_void_rows


def answer(**outcome) -> RewardInput:
    return RewardInput(id="0", group=0, prompt="?", text="12, 34", outcome=outcome)


@pytest.mark.parametrize("value, expected", [(True, 1.0), (False, 0.0), (0.25, 0.25), (1, 1.0)])
def test_the_value_of_a_key_is_the_score(value, expected):
    output = load("outcome", key="progress").score([answer(progress=value, success=not value)])
    assert output.values["outcome"].tolist() == [expected]


def test_weights_give_the_mean_of_several_keys_and_each_of_them():
    reward = load("outcome", weights={"success": 3.0, "iou": 1.0, "redundant": 0.0})
    output = reward.score([answer(success=True, iou=0.5, redundant=0.25)])
    assert {name: column.tolist() for name, column in output.values.items()} == {
        "outcome": [0.875], "success": [1.0], "iou": [0.5], "redundant": [0.25]
    }  # fmt: skip
    assert reward.score([answer(success=True)]).status["outcome"] == [Status.ERROR]


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": math.nan}])
def test_weights_without_a_mean_are_refused(weights):
    with pytest.raises(RewardError, match="outcome: weights"):
        load("outcome", weights=weights)
    with pytest.raises(RewardError, match="no key can be called outcome"):
        load("outcome", weights={"outcome": 1.0})


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan, "yes", None])
def test_other_values_are_failures_and_no_scores(value):
    output = load("outcome").score([answer(success=value)])
    assert output.status["outcome"] == [Status.ERROR]
    assert output.failures[0]["outcome"].kind == "out_of_range"
    assert "not a number in [0, 1]" in output.detail[0]["outcome"]


def test_a_missing_key_is_named_with_those_that_are_there():
    output = load("outcome", key="sucess").score([answer(success=True, clicks=3)])
    assert output.detail[0]["outcome"] == "the outcome has no 'sucess': it has clicks, success"
    output = load("outcome").score([RewardInput(id="0", group=0, prompt="?", text="a")])
    assert math.isnan(output.values["outcome"][0])


def test_further_keys_are_measured_under_their_own_names():
    output = load("outcome", also=["hit"]).score([answer(success=True, hit=False), answer(success=False, hit=True)])
    assert {name: values.tolist() for name, values in output.values.items()} == {"outcome": [1, 0], "hit": [0, 1]}
    missing = load("outcome", also=["hits"]).score([answer(success=True, hit=False)])
    assert "has no 'hits'" in missing.detail[0]["outcome"]


def test_calls_of_all_tools_are_counted_up_to_the_most():
    rows = [answer(calls={}), answer(calls={"crop": 1, "draw": 1}), answer(calls={"crop": 9}), answer(success=True)]
    output = load("tool_calls", most=4).score(rows)
    assert output.values["tool_calls"][:3].tolist() == [0.0, 0.5, 1.0]
    assert math.isnan(output.values["tool_calls"][3])
    assert load("tool_calls").spec.sign == -1
    with pytest.raises(ConfigError, match="most is 0"):
        load("tool_calls", most=0)


def test_void_rows_are_not_scored_in_any_reward():
    suite = RewardSuite([(load("outcome"), 1.0), (load("format"), 0.5)])
    output = suite.score([answer(success=True), answer(success=True), answer(success=False)])
    found = without_void_rows(output, [None, "timeout", None])
    for name in ("outcome", "format", "total"):
        assert np.isnan(found.values[name]).tolist() == [False, True, False]
        assert found.status[name][1] is Status.ERROR
    assert suite.failures(found) == {"outcome": {"episode_timeout": 1}, "format": {"episode_timeout": 1}}
    assert found.values["total"][0] == output.values["total"][0]
    assert not np.isnan(output.values["total"]).any()  # the output before is left as it was
    assert without_void_rows(output, [None] * 3) is output


def test_outcomes_are_part_of_the_key_of_a_cached_score():
    keys = {score_key("f", answer(success=value)) for value in (True, False)}
    assert len(keys) == 2
    assert score_key("f", answer(success=True)) in keys


def test_inputs_hold_the_outcome_and_the_texts_of_all_turns():
    found = reward_input(Sample("a", prompt="?"), "34", 0, "a/0", [1], {"success": True}, ("12", "34"))
    assert (found.text, found.outcome, found.metadata["turns"]) == ("34", {"success": True}, ["12", "34"])
    plain = reward_input(Sample("a", prompt="?"), "34", 0, "a/0")
    assert plain.outcome == {} and "turns" not in plain.metadata
