"""Numbers, read exactly."""

import random
import time
from decimal import Decimal
from fractions import Fraction

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.numbers import find_number, parse_number


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("-1,234.5", None, Fraction(-2469, 2)),
        ("\u22125", None, -5),
        ("+5", None, 5),
        (".5", None, Fraction(1, 2)),
        ("3.", None, 3),
        ("1.2e-3", None, Fraction(12, 10_000)),
        ("1.2 \\times 10^{-3}", None, Fraction(12, 10_000)),
        ("2\u00d710^6", None, 2_000_000),
        ("2 x 10^6", None, 2_000_000),
        ("3/4", None, Fraction(3, 4)),
        ("1 3/4", None, Fraction(7, 4)),
        ("1\\frac{3}{4}", None, Fraction(7, 4)),
        ("-\\dfrac{3}{4}", None, Fraction(-3, 4)),
        ("$5", None, 5),
        ("\\$5", None, 5),
        ("-\u20ac1,000.50", None, Fraction(-2001, 2)),
        ("$5$", None, 5),
        ("12%", None, Fraction(12, 100)),
        ("12\\%", None, Fraction(12, 100)),
        ("12 percent", None, Fraction(12, 100)),
        ("12%", "%", 12),
        ("12", "%", 12),
        ("5 million", None, 5_000_000),
        ("5 cm", "cm", 5),
        ("5cm", "cm", 5),
        ("5 \\text{ cm}", "cm", 5),
        ("5", "cm", 5),
        ("12{,}345", None, 12345),
    ],
)
def test_numbers_are_read_in_every_form(text, unit, value):
    assert parse_number(text, unit) == value
    assert find_number(text, unit) == value
    assert find_number(f"It is {text}", unit) == value or text.startswith(("\\", "$5$"))
    assert find_number(f"2 + 2 is 4. The answer is {text}", unit) == value


NOT_ONE = ["", "nan", "NaN", "inf", "-Infinity", "\u221e", "1e9999", "9" * 400, "1,5", "12,34", "1.2.3", "1_000", "--3"]
NOT_ONE += ["0x10", "1e", "5/0", "three", "2+3", "3-4", "3:4", "12:30", "x3", "3D", "2**3", "3 = 4", "1 < 3", "not 3"]
NOT_ONE += ["less than 3", "at least 3", "minus 3", "3 or 4", "3, 4", "5%3", "Answer: 3\nAnswer: 4", "[3, 4]", "5 - 3"]
NOT_ONE += [
    "sqrt(3)",
    "\\sqrt{3}",
    "\u221a3",
    "log(3)",
    "|3|",
    "3!",
    "3 squared",
    "3 and a half",
    "half of 3",
    "twice 3",
]
NOT_ONE += [
    "3 dozen",
    "3 hundred",
    "3 Million",
    "3 i",
    "\u00b1 3",
    "\\pm 3",
    "\u22653",
    "\u2264 3",
    "up to 3",
    "\u20133",
]
NOT_ONE += ["not exactly 3", "is not equal to 3", "never 3", "it isn't 3", "3 or four", "four or 3", "3 \\times 3"]
NOT_ONE += ["3 is wrong", "It is (- 3)"]
NOT_ONE += ["\uff13", "\u0663", "3\u00b2", "\u00bd", "\u2163"]  # digits that are not ASCII's


@pytest.mark.parametrize("text", NOT_ONE)
def test_texts_without_a_single_number_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        find_number(text)


MORE_UNIT = ["5 cm per s", "5 cm s", "5 cm.s", "5 cm squared", "5 cm \u00d7 s"]


@pytest.mark.parametrize(
    "text", ["5 km", "5 cm2", "5%", "5\u00b0", "5 cm and 3 m", "the length is 5 metres", *MORE_UNIT]
)
def test_other_units_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        find_number(text, "cm")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("There are 3 circles.", 3),
        ("I count 3, so 3.", 3),
        ('{"answer": {"value": 3}}', 3),
        ("```json\n[3]\n```", 3),
        ("x = 3", 3),
        ("first 1, then 2. The answer is 3", 3),
        ("- 3 circles", 3),
        ("- 3", -3),
        ("Answer: \u2212 3", -3),
        ("I count (3)", 3),
        ("I am not sure, but 3", 3),
        ("about 3", 3),
        ("3, or three", 3),
    ],
)
def test_numbers_are_found_in_sentences(text, value):
    assert find_number(text) == value


def test_short_phrases_may_follow_a_unit():
    for text in ("It is 3 m long", "3 m in all", "- 3 m"):
        assert abs(find_number(text, "m")) == 3


@pytest.mark.integration
def test_a_thousand_random_numbers_are_read_exactly():
    rng = random.Random(0)
    for _ in range(1000):
        value = Decimal(rng.randint(-(10**9), 10**9)).scaleb(rng.randint(-9, 9))
        for text in (f"{value:f}", f"{value:,f}", f"{value:e}", f"{value:E}", f"${value:,f}"):
            assert parse_number(text) == Fraction(value), text
        below = rng.randint(1, 10**6)
        assert parse_number(f"{value.to_integral_value():f}/{below}") == Fraction(value.to_integral_value()) / below


def test_long_and_hostile_texts_are_parsed_quickly():
    started = time.process_time()
    for text in ("1 " * 5000, "1," * 5000, "1" * 10_000, " " * 10_000, "answer is " * 1000, "\\frac{1}{" * 1000):
        for hostile in (text, text + "x", "1" + text):
            with pytest.raises(InvalidAnswer):
                find_number(hostile + " 2")
    assert time.process_time() - started < 10
