"""Calls are graded by tool, names of parameters and values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, load
from mmrl.rewards.core.reward_errors import RewardError, Status

LIGHT = {"name": "light", "parameters": {"room": "hall", "level": 7}}
HEAT = {"name": "heat", "parameters": {"room": "attic"}}


def text_of(*calls: object) -> str:
    lines = "\n".join(json.dumps(call) for call in calls)
    return f"<think>two things</think>\n<tool_call>\n{lines}\n</tool_call>"


def scored(text: str, wanted: list[dict] | None = None, grade: str = "fine"):
    item = RewardInput("0", 0, "?", text=text, references={"answer": wanted or [LIGHT, HEAT]})
    return load("tool_call_match", grade=grade).score([item])


def value(*calls: object, **args: object) -> float:
    return float(scored(text_of(*calls), **args).values["tool_call_match"][0])


def test_each_part_counts_by_hand():
    # 1 + 2 calls + 3 parameters: at most 6 points, and a point is worth 1.
    assert value(LIGHT, HEAT) == value(HEAT, LIGHT) == 3
    dim = {"name": "light", "parameters": {"room": "hall", "level": 3}}
    assert value(dim, HEAT) == pytest.approx(2)  # one value is wrong
    renamed = {"name": "light", "parameters": {"room": "hall", "amount": 7}}
    assert value(renamed, HEAT) == pytest.approx(-3 + 1 + (1 / 3 + 1) + 2)  # names 1 of 3, one right value
    assert value(LIGHT) == pytest.approx(-3 + 1 / 2 + 3)
    assert value(LIGHT, HEAT, HEAT) == pytest.approx(-3 + 2 / 3 + 5)
    assert value({"name": "sing", "parameters": {}}) == -3
    assert value({"name": "heat", "arguments": {"room": "attic"}}) == pytest.approx(-3 + 1 / 2 + 2)


def test_a_written_call_is_used_once():
    twice = [LIGHT, {"name": "light", "parameters": {"room": "attic", "level": 7}}]
    # names 1/2; the one call agrees wholly with the first, and nothing is left for the second: 0.5 + 3 of 7 points.
    assert value(LIGHT, wanted=twice) == pytest.approx(-3 + 6 * 3.5 / 7)


def test_coarser_grades():
    dim = {"name": "light", "parameters": {"room": "hall", "level": 3}}
    assert value(dim, HEAT, grade="calls") == pytest.approx(-3 + 6 * 2 / 3)
    assert value(dim, HEAT, grade="exact") == value(HEAT, LIGHT, grade="exact") == -3
    assert value(LIGHT, HEAT, grade="exact") == value(HEAT, LIGHT, grade="calls") == 3


def test_the_further_score_is_the_same_for_all_grades():
    for grade in ("fine", "calls", "exact"):
        for calls, expected in (((LIGHT, HEAT), 1), ((HEAT, LIGHT), 1), ((LIGHT,), 0), ((LIGHT, HEAT, HEAT), 0)):
            assert scored(text_of(*calls), grade=grade).values["calls_exact"][0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "light the hall",
        "<tool_call>" + json.dumps(LIGHT),
        "<tool_call>light(hall)</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "light"}</tool_call>',
        '<tool_call>{"name": "light", "parameters": {"room": NaN}}</tool_call>',
        '<tool_call>{"name": "light", "parameters": {"room": "a", "room": "b"}}</tool_call>',
        text_of(LIGHT) + "<tool_call>",
        "x" * 200_000,
    ],
)
def test_a_malformed_call_has_the_lowest_score(text):
    found = scored(text)
    assert found.values["tool_call_match"][0] == -3 and found.values["calls_exact"][0] == 0
    assert found.status["tool_call_match"] == [Status.OK]


def test_true_is_not_one():
    wanted = [{"name": "light", "parameters": {"on": 1}}]
    assert value({"name": "light", "parameters": {"on": True}}, wanted=wanted) == pytest.approx(-3 + 6 * 2 / 3)


@given(st.lists(st.sampled_from([LIGHT, HEAT, {"name": "light", "parameters": {"level": 7}}]), max_size=4))
def test_nothing_is_above_the_wanted_calls(calls):
    found = value(*calls)
    assert -3 <= found <= 3
    assert (found == 3) == (sorted(map(str, calls)) == sorted(map(str, [LIGHT, HEAT])))


def test_what_cannot_work_is_named():
    with pytest.raises(RewardError, match="grade is 'rough'"):
        load("tool_call_match", grade="rough")
    for answer in ("light", [], [{"name": "light"}]):
        item = RewardInput("0", 0, "?", text=text_of(LIGHT), references={"answer": answer})
        assert load("tool_call_match").score([item]).status["tool_call_match"] == [Status.ERROR]
