"""Numbers within a tolerance."""

import math
import random
from fractions import Fraction

import pytest

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.numeric import Numeric

from .single_answer import ask, outcome, value


@pytest.mark.parametrize(
    ("text", "answer", "tolerances", "expected"),
    [
        ("0.5", "1/2", {}, 1),
        ("\\boxed{\\frac{1}{2}}", 0.5, {}, 1),
        ("0.333", "1/3", {}, 0),
        ("0.333", "1/3", {"absolute": 0.001}, 1),
        ("0.333", "1/3", {"relative": 0.0005}, 0),
        ("0.333", "1/3", {"relative": 0.001}, 1),
        *(("10.3", 10, {"relative": 0.03}, 1), ("11.5", 10, {"relative": 0.15}, 1), ("13", 10, {"relative": 0.3}, 1)),
        *(("10.03", 10, {"absolute": 0.03}, 1), ("10.030001", 10, {"absolute": 0.03}, 0)),
        ("105", 100, {"relative": 0.05}, 1),
        ("-105", 100, {"relative": 0.05}, 0),
        ("0.1", 0, {"relative": 10}, 0),
        ("0.1", 0, {"relative": 10, "absolute": 0.2}, 1),
        ("1,000", 1e3, {}, 1),
        ("<think>7</think><answer>The answer is 1e3.</answer>", 1000, {}, 1),
        ("1e300", 1e300, {}, 1),
    ],
)
def test_tolerances_by_hand(text, answer, tolerances, expected):
    assert value(Numeric(**tolerances), text, answer) == expected


def test_units_may_be_omitted_but_not_replaced():
    assert value(Numeric(), "5 cm", "5 cm", unit="cm") == value(Numeric(), "5", 5, unit="cm") == 1
    assert outcome(Numeric(), "5 km", 5, unit="cm") == (0, Status.INVALID)
    assert value(Numeric(), "12%", 12, unit="%") == 1 and value(Numeric(), "12%", 12) == 0
    assert value(Numeric(), "12%", 0.12) == 1


def test_missing_or_several_numbers_are_invalid():
    for text in ("", "nan", "infinity", "1e999999", "3 or 4", "<answer>3</answer><answer>4</answer>", "\u0663"):
        assert outcome(Numeric(), text, 3) == (0, Status.INVALID), text


@pytest.mark.parametrize("answer", [math.nan, math.inf, "three", "", True, [3], {"a": 3}])
def test_non_numeric_references_are_scorer_failures(answer):
    output = Numeric().score([ask("3", answer)])
    assert output.status["numeric"] == [Status.ERROR] and math.isnan(output.values["numeric"][0])
    assert output.failures[0]["numeric"].kind == "reference"


def test_non_text_units_are_scorer_failures():
    assert outcome(Numeric(), "3", 3, unit=5)[1] is Status.ERROR


@pytest.mark.integration
def test_1000_random_numbers_equal_fractions():
    rng = random.Random(0)
    agreed = 0
    for _ in range(1000):
        truth, off = Fraction(rng.randint(-999, 999), 10), Fraction(rng.randint(-20, 20), 100)
        answered = truth + off * (abs(truth) if rng.random() < 0.5 else 1)
        relative, absolute = rng.choice([0, 0.125]), rng.choice([0, 0.125])
        expected = abs(answered - truth) <= max(Fraction(absolute), Fraction(relative) * abs(truth))
        text = f"{answered.numerator}/{answered.denominator}"
        agreed += value(Numeric(relative, absolute), text, float(truth)) == expected
    assert agreed == 1000


@pytest.mark.parametrize("wrong", [{"relative": -1}, {"absolute": math.nan}, {"relative": math.inf}])
def test_invalid_tolerances_are_rejected(wrong):
    with pytest.raises(RewardError, match=r"numeric: .* tolerance"):
        Numeric(**wrong)
