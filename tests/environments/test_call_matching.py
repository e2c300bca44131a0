"""Calls matched with wanted ones: closed forms, the best of all assignments, and turn rewards known at the end."""

from __future__ import annotations

import json
import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch, Observation, Step, ToolEnvironment, load_tool
from mmrl.environments.call_matching import call_similarity, matched_scores, value_agreement, wanted_calls
from mmrl.environments.episode_batch import turn_rewards_of
from mmrl.environments.retrieval_quality import ndcg
from mmrl.environments.tool_calls import ToolCall
from mmrl.errors import DataError
from tests.environments.worlds import READER


@pytest.mark.parametrize(
    "similarity, expected",
    [
        ([], []),
        ([[], []], [0.0, 0.0]),
        ([[1.0], [1.0], [1.0]], [1.0, 0.0, 0.0]),  # a repetition earns nothing
        ([[0.4], [0.9]], [0.0, 0.9]),  # the better attempt is matched
        ([[0.9, 0.8], [0.8, 0.1]], [0.8, 0.8]),  # 1.6 in all, where the greedy choice has 1.0
        ([[0.0, 0.0], [0.0, 0.5]], [0.0, 0.5]),
    ],
)
def test_matched_scores_of_known_tables(similarity, expected):
    assert matched_scores(similarity) == expected


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=5))
def test_no_assignment_has_a_larger_sum(rows):
    table = np.array(rows) / 4
    padded = np.zeros((len(table), max(3, len(table))))
    padded[:, :3] = table
    best = max(
        sum(padded[row, column] for row, column in enumerate(each[: len(table)]))
        for each in permutations(range(padded.shape[1]))
    )
    scores = matched_scores(table.tolist())
    assert sum(scores) == pytest.approx(best)
    assert sum(score > 0 for score in scores) <= 3
    assert all(score == 0 or score in row for score, row in zip(scores, table.tolist(), strict=True))


def test_similarity_is_that_of_the_tool_the_names_and_the_values():
    wanted = ToolCall("crop", {"box": [0, 0, 100, 100], "image": 1})
    assert call_similarity(wanted, wanted) == 1.0
    assert call_similarity(ToolCall("draw", dict(wanted.arguments)), wanted) == 0.0
    half = ToolCall("crop", {"box": [0, 0, 100, 50], "image": 1})
    assert call_similarity(half, wanted) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert call_similarity(ToolCall("crop", {"image": 2, "size": 3}), wanted) == pytest.approx((1 + 1 / 3) / 4)
    assert call_similarity(ToolCall("list", {}), ToolCall("list", {})) == 1.0


@pytest.mark.parametrize(
    "value, wanted, expected",
    [
        ("Blue circle", "blue square", 0.5),
        ("", "blue", 0.0),
        ([0, 0, 2, 2], [1, 0, 3, 2], 1 / 3),
        ([2, 0, 0, 2], [0, 0, 2, 2], 0.0),  # swapped
        ([0, 0, 1, math.inf], [0, 0, 1, 1], 0.0),
        (1, True, 0.0),
        (3, 3.0, 1.0),
        ({"a": 1}, {"a": 1}, 1.0),
        (None, "blue", 0.0),
    ],
)
def test_values_agree_in_part(value, wanted, expected):
    assert value_agreement(value, wanted) == pytest.approx(expected)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda each: st.lists(each, max_size=4)
    )
)
def test_any_value_has_an_agreement_in_the_unit_interval(value):
    assert 0 <= value_agreement(value, [0, 0, 2, 2]) <= 1 and 0 <= value_agreement(value, "blue circle") <= 1


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_tools_reward_the_turns_whose_calls_are_wanted():
    wanted = [{"name": "calculator", "arguments": {"expression": "6 * 7"}}]
    sample = Sample("text", prompt="Calculate.", metadata={"calls": wanted})
    environment = ToolEnvironment([load_tool("calculator")], max_turns=4)
    batch = EpisodeBatch(environment, [sample, Sample("other", prompt="Calculate.")], READER)
    right, wrong = call("calculator", expression="6 * 7"), "<tool_call>{]</tool_call>"
    for action in (wrong, right, right, "It is 42."):
        batch.step(dict.fromkeys(batch.live, action))
    matched, other = batch.outcomes()
    assert matched["turn_rewards"] == {"match": [0.0, 1.0, 0.0, 0.0]}
    assert matched["matched"] == 1.0 and matched["redundant"] == pytest.approx(2 / 3)
    assert "turn_rewards" not in other and other["void"] is None


def test_retrieval_is_the_ndcg_of_what_the_searches_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "index.jsonl").write_text(
        "\n".join(json.dumps({"id": each, "text": each}) for each in ("old", "steel", "bridge"))
    )
    environment = ToolEnvironment([load_tool("search", index="index.jsonl")])
    episode = environment.begin(Sample("text", metadata={"relevant": ["steel"]}), READER)
    for query in ("old", "steel"):
        episode.step(call("search", query=query))
    assert episode.outcome()["retrieval"] == pytest.approx(1 / math.log2(3))
    assert ndcg(["a", "a", "b"], ["b"]) == pytest.approx(1 / math.log2(3)) and ndcg(["b", "a"], ["a", "b"]) == 1
    with pytest.raises(DataError, match="relevant"):
        environment.begin(Sample("text", metadata={"relevant": "steel"}), READER)


def test_wanted_calls_that_are_none_are_named():
    environment = ToolEnvironment([load_tool("calculator")])
    for calls, reason in (
        (3, "a list of calls"),
        ([{"arguments": {}}], "needs a name"),
        ([{"name": "a", "arguments": 1}], "object"),
    ):
        with pytest.raises(DataError, match=f"'text'.*metadata.calls.*{reason}"):
            environment.begin(Sample("text", metadata={"calls": calls}), READER)
    assert wanted_calls([{"name": "a"}]) == [ToolCall("a", {})]


class Hindsight:
    """An environment whose outcome brings rewards of turns."""

    max_turns, instructions, deadline_s = 2, "", None

    def __init__(self, rewards):
        self.rewards = rewards

    def begin(self, sample, reader):
        return self

    def step(self, action):
        return Step(Observation("on"))

    def outcome(self):
        return {"turn_rewards": self.rewards}


@pytest.mark.parametrize("rewards", [3, {"match": 1}, {"match": [1, 2, 3]}, {"match": [math.nan]}, {"match": ["a"]}])
def test_an_outcome_with_other_turn_rewards_is_void(rewards):
    batch = EpisodeBatch(Hindsight(rewards), [Sample("a")], READER)
    for _ in range(2):
        batch.step({0: "x"})
    assert batch.outcomes()[0]["void"] == "error" and "turn_rewards" in batch.outcomes()[0]["detail"]


def test_an_outcome_may_bring_rewards_of_the_first_turns():
    batch = EpisodeBatch(Hindsight({"match": [0.5]}), [Sample("a")], READER)
    for _ in range(2):
        batch.step({0: "x"})
    assert turn_rewards_of(batch.outcomes()[0], batch.turns[0]) == {"match": [0.5]}
