"""Verdicts on pairs: what is read, and both orders of a pair together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmrl.rewards import RewardInput, load
from mmrl.rewards.core.reward_errors import InvalidAnswer, Status
from mmrl.rewards.rules.verdicts import read_verdict


def judged(*rows):
    """Return inputs of (pair, right letter, what the judge wrote)."""
    return [
        RewardInput(str(n), n, "?", text=text, references={"pair": pair, "answer": right})
        for n, (pair, right, text) in enumerate(rows)
    ]


@pytest.mark.parametrize("text", ["B", "(B)", "<think>A fits in number</think>B", "<answer>B</answer>", "Answer: B."])
def test_the_verdict_is_the_letter_after_the_thoughts(text):
    assert read_verdict(text) == "B"


@pytest.mark.parametrize("text", ["", "C", "A or B", "<think>B", "both"])
def test_other_texts_are_no_verdict(text):
    with pytest.raises(InvalidAnswer):
        read_verdict(text)


def test_a_right_verdict_is_1_and_places_are_counted():
    output = load("verdict").score(judged(("1", "A", "A"), ("1", "B", "A"), ("2", "B", "B"), ("3", "A", "neither")))
    assert output.values["verdict"].tolist() == [1, 0, 1, 0]
    assert output.values["chose_first"].tolist() == [1, 1, 0, 0]
    assert output.status["verdict"][3] is Status.INVALID


def test_both_orders_count_only_together():
    """By hand: right in both; right in one, for the first place both times; wrong in both, which is consistent."""
    rows = [("1", "A", "A"), ("1", "B", "B"), ("2", "A", "A"), ("2", "B", "A"), ("3", "B", "A"), ("3", "A", "B")]
    output = load("both_orders").score(judged(*rows))
    assert output.values["both_orders"].tolist() == [1, 1, 0, 0, 0, 0]
    assert output.values["consistent"].tolist() == [1, 1, 0, 0, 1, 1]


def test_a_judge_that_always_names_the_first_place_has_half_and_nothing():
    """Negative control: its accuracy is that of chance, and no pair counts."""
    rows = [(str(n // 2), "AB"[n % 2], "A") for n in range(20)]
    assert load("verdict").score(judged(*rows)).values["verdict"].mean() == 0.5
    output = load("both_orders").score(judged(*rows))
    assert output.values["both_orders"].sum() == output.values["consistent"].sum() == 0


def test_answers_without_their_other_order_are_not_scored():
    output = load("both_orders").score(judged(("1", "A", "A"), ("2", "A", "A"), ("2", "B", "?"), ("2", "A", "A")))
    assert [math.isnan(value) for value in output.values["both_orders"]] == [True, False, False, True]
    assert output.failures[0]["both_orders"].kind == "alone"
    assert np.nansum(output.values["both_orders"]) == 0  # a verdict that cannot be read is wrong


def test_a_reference_that_is_no_verdict_is_named():
    output = load("verdict").score(judged(("1", "first", "A")))
    assert "'first'; a judge's is A or B" in output.detail[0]["verdict"]
