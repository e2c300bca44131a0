"""Rewards for counts."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import Status
from mmrl.rewards.rules.numeric import CountExact, CountGraded, graded_count

from .single_answer import ask, outcome, value


@pytest.mark.parametrize(
    ("text", "truth", "exact", "graded"),
    [
        ("three", 3, 1, 1),
        ("<think>2 or 4?</think><answer>3</answer>", "three", 1, 1),
        ("2", 4, 0, 0.5),
        ("5", 4, 0, 0.75),
        ("9", 4, 0, 0),
        ("0", 0, 1, 1),
        ("1", 0, 0, 0),
        ("0", 3, 0, 0),
        ("3", 3.0, 1, 1),
    ],
)
def test_counts_by_hand(text, truth, exact, graded):
    assert value(CountExact(), text, truth) == exact
    assert value(CountGraded(), text, truth) == graded


def test_500_random_counts_equal_the_relative_error_of_numpy():
    rng = np.random.default_rng(0)
    counts, truths = rng.integers(0, 30, 500), rng.integers(0, 30, 500)
    items = [ask(f"I see {count}.", int(truth)) for count, truth in zip(counts, truths, strict=True)]
    expected = (1 - np.abs(counts - truths) / np.maximum(truths, 1)).clip(0)
    np.testing.assert_allclose(CountGraded().score(items).values["count_graded"], expected, atol=1e-6)
    np.testing.assert_array_equal(CountExact().score(items).values["count_exact"], counts == truths)


def test_large_counts_off_by_one_are_not_perfect():
    assert value(CountGraded(), "999999999999", 10**12) < 1
    assert value(CountGraded(), "1,000,000,000,000", 10**12) == 1


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_score_is_monotone_in_the_error_and_one_for_the_truth_only(truth, count, other):
    nearer, farther = sorted((count, other), key=lambda n: abs(n - truth))
    assert 0 <= graded_count(farther, truth) <= graded_count(nearer, truth) <= 1
    assert (np.float32(graded_count(count, truth)) == 1) == (count == truth)
    assert graded_count(truth, truth) == 1


def test_answers_with_every_number_are_invalid():
    stuffed = " ".join(map(str, random.Random(0).sample(range(50), 50)))
    for reward in (CountExact(), CountGraded()):
        assert outcome(reward, stuffed, 3) == (0, Status.INVALID)
        assert outcome(reward, "one two three four", 3) == (0, Status.INVALID)
        assert outcome(reward, "", 3) == (0, Status.INVALID)


@pytest.mark.parametrize("truth", [-1, 2.5, float("nan"), float("inf"), True, [3], "some", {"n": 3}])
def test_malformed_references_are_scorer_failures(truth):
    for reward in (CountExact(), CountGraded()):
        assert outcome(reward, "3", truth)[1] is Status.ERROR
