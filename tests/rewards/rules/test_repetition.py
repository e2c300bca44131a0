"""Repetition, against trl and by hand."""

import numpy as np
import pytest
from trl.rewards import get_repetition_penalty_reward

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.lengths import Repetition, repeated_ngram_fraction

from .single_answer import ask, outcome, value


@pytest.mark.parametrize(
    ("text", "ngram", "score"),
    [
        ("", 3, 0),
        ("a b", 3, 0),
        ("a b c d e", 3, 0),
        ("a a a a a", 3, -2 / 3),
        ("A a  a\na a", 3, -2 / 3),
        ("a b a b a b", 2, -3 / 5),
        ("a a a a", 1, -3 / 4),
        ("红圆红圆红圆", 2, -3 / 5),
        ("红圆", 3, 0),
        ("it's it's it's", 1, -2 / 3),
    ],
)
def test_repetition_by_hand(text, ngram, score):
    assert value(Repetition(ngram), text) == pytest.approx(score)


@pytest.mark.integration
def test_1000_random_answers_equal_trl_in_tokens_words_and_chinese():
    rng = np.random.default_rng(0)
    letters = "红圆三个蓝方大小"
    scores = []
    for _ in range(1000):
        ngram = int(rng.integers(1, 6))
        ids = rng.integers(0, rng.integers(1, 9), rng.integers(0, 40)).tolist()
        expected = get_repetition_penalty_reward(ngram, -1.0)([ids])[0]
        assert value(Repetition(ngram, "tokens"), "x", metadata={"tokens": ids}) == pytest.approx(expected, abs=1e-6)
        assert value(Repetition(ngram), " ".join(f"w{i}" for i in ids)) == pytest.approx(expected, abs=1e-6)
        assert value(Repetition(ngram), "".join(letters[i] for i in ids)) == pytest.approx(expected, abs=1e-6)
        scores.append(expected)
    assert min(scores) < -0.9 and max(scores) == 0 and len(set(scores)) > 100


def test_longer_loops_have_a_larger_share():
    shares = [repeated_ngram_fraction(["a", "b", "c"] * times, 3) for times in range(1, 30)]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] > 0.95


def test_long_answers_are_scored_and_huge_ones_invalid():
    assert value(Repetition(), "na " * 300_000) < -0.99
    assert outcome(Repetition(), "na " * 400_000) == (-1, Status.INVALID)


def test_missing_tokens_are_scorer_failures():
    for metadata in ({}, {"tokens": 5}, {"tokens": "abc"}):
        assert outcome(Repetition(unit="tokens"), "x", metadata=metadata)[1] is Status.ERROR
    assert Repetition(unit="tokens").score([ask("x")]).failures[0]["repetition"].kind == "missing"


@pytest.mark.parametrize(
    "wrong", [{"ngram": 0}, {"ngram": 2.5}, {"ngram": True}, {"ngram": 101}, {"unit": "characters"}]
)
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(RewardError, match=next(iter(wrong))):
        Repetition(**wrong)
