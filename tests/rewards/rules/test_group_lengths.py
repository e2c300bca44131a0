"""The length that is rewarded follows from what the other answers to a prompt did."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, load
from mmrl.rewards.core.reward_errors import RewardError, Status

RIGHT, WRONG = "7", "8"


def items(answers: str, lengths: list[int], group: int = 0) -> list[RewardInput]:
    texts = {"r": RIGHT, "w": WRONG}
    return [
        RewardInput(
            f"{group}/{n}", group, "3+4=", text=texts[each], references={"answer": 7}, metadata={"tokens": size}
        )
        for n, (each, size) in enumerate(zip(answers, lengths, strict=True))
    ]


def scores(name: str, answers: str, lengths: list[int], **args: Any) -> list[float]:
    return load(name, of="numeric", **args).score(items(answers, lengths)).values[name].tolist()


def test_short_answers_win_once_all_are_right():
    assert scores("gated_length", "rrr", [10, 25, 200], limit=100) == pytest.approx([0.9, 0.75, 0])
    assert scores("gated_length", "rrw", [10, 25, 10], limit=100) == [0, 0, 0]
    assert scores("gated_length", "rrw", [10, 25, 10], limit=100, when="right") == pytest.approx([0.9, 0.75, 0])
    assert scores("gated_length", "rrw", [10, 25, 10], limit=100, when="always") == pytest.approx([0.9, 0.75, 0.9])


def test_the_gate_is_that_of_each_prompt():
    reward = load("gated_length", limit=100, of="numeric")
    mixed = [*items("rw", [10, 10], group=1), *items("rr", [10, 20], group=2)]
    assert reward.score(mixed).values["gated_length"].tolist() == pytest.approx([0, 0, 0.9, 0.8])


def test_wrong_answers_win_by_the_length_of_right_ones():
    found = scores("dynamic_length", "rrwwwww", [10, 30, 0, 10, 20, 30, 40], target=500, limit=1000)
    half = -(1 + math.cos(math.pi / 2)) / 2
    assert found == pytest.approx([0, 0, -1, half, 0, half, -1], abs=1e-6)
    assert half == pytest.approx(-0.5)


def test_where_none_is_right_long_answers_win_up_to_the_limit():
    assert scores("dynamic_length", "wwww", [0, 10, 20, 100], target=20, limit=100) == pytest.approx([-1, -0.5, 0, -1])


def test_the_shortest_right_answer_above_the_floor_has_the_bonus():
    assert scores("shortest_right", "rrw", [120, 150, 101]) == [1, 0, 0]
    assert scores("shortest_right", "rrw", [90, 150, 101]) == [0, 0, 0]  # one is short enough already
    assert scores("shortest_right", "rrw", [90, 90, 1], more_than=5) == [1, 1, 0]
    assert scores("shortest_right", "ww", [120, 150]) == [0, 0]


@pytest.mark.integration
@given(
    st.lists(st.tuples(st.sampled_from("rw"), st.integers(0, 300)), min_size=1, max_size=6),
    st.randoms(),
    st.sampled_from([("gated_length", {"limit": 200}), ("dynamic_length", {"target": 50, "limit": 250}),
                     ("shortest_right", {})]),
)  # fmt: skip
def test_the_order_of_answers_does_not_matter(rows, random, reward):
    name, args = reward
    order = random.sample(range(len(rows)), len(rows))
    found = scores(name, "".join(each for each, _ in rows), [size for _, size in rows], **args)
    again = scores(name, "".join(rows[n][0] for n in order), [rows[n][1] for n in order], **args)
    assert again == [found[n] for n in order]


def test_an_answer_that_cannot_be_judged_fails_alone_and_counts_as_wrong():
    group = items("rr", [10, 20])
    group[1] = RewardInput("0/1", 0, "3+4=", text=RIGHT, references={}, metadata={"tokens": 20})
    found = load("gated_length", limit=100, of="numeric").score(group)
    assert found.status["gated_length"] == [Status.OK, Status.ERROR] and found.values["gated_length"][0] == 0
    unmeasured = [*items("r", [10]), RewardInput("0/1", 0, "3+4=", text=RIGHT, references={"answer": 7})]
    found = load("gated_length", limit=100, of="numeric").score(unmeasured)
    assert found.status["gated_length"] == [Status.OK, Status.ERROR] and found.values["gated_length"][0] == 0


def test_what_cannot_work_is_named():
    with pytest.raises(RewardError, match="when is 'never'"):
        load("gated_length", limit=10, when="never")
    with pytest.raises(RewardError, match="limit is 0"):
        load("gated_length", limit=0)
    with pytest.raises(RewardError, match="target 20 is above limit 10"):
        load("dynamic_length", target=20, limit=10)
    with pytest.raises(RewardError, match="more_than is -1"):
        load("shortest_right", more_than=-1)
    with pytest.raises(RewardError, match="cannot tell right from wrong"):
        load("gated_length", limit=10, of="ocr_cer")
    with pytest.raises(RewardError, match="unit is 'lines'"):
        load("gated_length", limit=10, unit="lines")
    reward = load("gated_length", limit=10, of="numeric")
    assert reward.fingerprint() != load("gated_length", limit=10, of="count_exact").fingerprint()
