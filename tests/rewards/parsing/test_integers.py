"""Whole numbers out of answers."""

import random

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.integers import parse_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("3", 3),
        ("  007\n", 7),
        ("There are 3 circles.", 3),
        ("three (3)", 3),
        ("3, that is three: 3.0", 3),
        ("1,204 grains", 1204),
        ("1204", 1204),
        ("12,345,678", 12_345_678),
        ("zero", 0),
        ("Twenty-One", 21),
        ("twenty\u2011one", 21),
        ("a hundred", 100),
        ("two hundred and five", 205),
        ("one thousand two hundred thirty-four", 1234),
        ("I count 2 red and 1 blue ones. Answer: 3", 3),
        ("2 + 1, so the answer is 3.", 3),
        ("$\\boxed{3}$", 3),
        ("- 3 circles", 3),  # a bullet
        ("<b>3</b>", 3),
        ("*3* circles", 3),
        ("**3**", 3),
        ("Total = 3", 3),
        ("It occurs 3 times.", 3),
        ("I am not sure, but 3", 3),
        ("3, or three", 3),
        ("the 2nd of them is red; 3 in all, each 10px wide", 3),
        ("一共有3个", 3),
    ],
)
def test_integers_are_read_in_every_form(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no number"),
        ("many", "no number"),
        ("none", "no number"),
        ("I have no idea", "no number"),
        ("2nd", "no number"),
        ("x3", "no number"),
        ("1e9", "no number"),
        ("three0", "no number"),
        ("3о", "no number"),  # noqa: RUF001  a Cyrillic o: it looks like 30
        ("оne", "no number"),  # noqa: RUF001
        ("1 2 3 4 5", "5 different numbers"),
        ("1,2,3", "3 different numbers"),
        ("3-5", "another number"),
        ("two three", "2 different numbers"),
        ("twenty and one", "2 different numbers"),
        ("2 or 3", "another number"),
        ("Answer: 2 or 3", "another number"),
        ("Answer: 2. Answer: 3", "stated 2 times"),
        ("-3", "not"),
        ("\u22123", "not"),
        ("\u20133", "not"),
        ("twenty one3", "not a number in words"),
        ("\u202e12", "U\\+202E"),
        ("minus three", "not"),
        ("not 3", "not"),
        ("there aren't 3", "not"),
        ("at least 3", "not"),
        ("more than three", "not"),
        ("3.5", "whole"),
        ("1.2.3", "not a count"),
        ("9" * 5000, "not a count"),
        ("1000000000001", "not a count"),
        ("3" * 10_001, "10001 characters"),
        ("３", "U\\+FF13"),  # noqa: RUF001  full width
        ("٣", "U\\+0663"),
        ("3²", "U\\+00B2"),
        ("③", "U\\+2462"),
        ("𝟛", "U\\+1D7DB"),  # noqa: RUF001
    ],
)
def test_texts_without_a_single_count_are_invalid_with_a_reason(text, reason):
    with pytest.raises(InvalidAnswer, match=reason):
        parse_count(text)


NOT_THREE = ["3 dozen", "3 million", "three million", "three quarters", "three-quarters", "three halves", "3%", "3 %"]
NOT_THREE += ["3 and a half", "three and a half", "\u221a3", "3!", "3+", ">3", ">= 3", "~3", "3 or more", "twice three"]
NOT_THREE += [
    "half of three",
    "3 + 3",
    "three plus three",
    "3 \u00d7 3",
    "3/3",
    "3-3",
    "- 3",
    "- three",
    "not exactly 3",
]
NOT_THREE += ["never 3", "up to 3", "it isn't 3", "3 or four", "square root of 3", "sqrt(3)", "|3|", "three squared"]


@pytest.mark.parametrize("text", NOT_THREE)
@pytest.mark.parametrize("form", ["{}", "There are {}", "Answer: {}"])
def test_adjacent_characters_change_a_number(text, form):
    if form == "There are {}" and text.startswith("- "):
        text = text.replace("- ", "-")  # behind a word, "- 3" is a dash
    with pytest.raises(InvalidAnswer):
        parse_count(form.format(text))


SMALL = [
    *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
    *["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"],
]


def in_words(number, rng):
    """English, with the freedoms that people take."""
    if number >= 1000:
        rest = number % 1000
        joint = rng.choice([" and ", " "]) if 0 < rest < 100 else " "
        return in_words(number // 1000, rng) + " thousand" + (joint + in_words(rest, rng) if rest else "")
    if number >= 100:
        rest = number % 100
        return SMALL[number // 100] + " hundred" + (rng.choice([" and ", " "]) + in_words(rest, rng) if rest else "")
    if number < 20:
        return SMALL[number]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"][number // 10 - 2]
    return tens + (rng.choice(["-", " "]) + SMALL[number % 10] if number % 10 else "")


@pytest.mark.integration
def test_numbers_in_words_are_read():
    rng = random.Random(0)
    for number in [*range(1001), *(rng.randrange(1000, 1_000_000) for _ in range(500))]:
        for written in (in_words(number, rng), in_words(number, rng).title(), str(number), f"{number:,}"):
            assert parse_count(f"I see {written} of them.") == number, written
