"""Reading from an answer which option it selects."""

import itertools
import random

import pytest

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.multiple_choice import MultipleChoice

from .single_answer import ask, outcome, value

CHOICES = ["a dog", "a cat", "a red circle", "a blue square"]

PICKS = ["B", "b", "(B)", "[B]", "B.", "B)", "B:", "**B**", "(b)", "`B`", "Option B", "the option (B)", "$\\text{B}$"]
PICKS += ["Answer: B", "**Answer:** B", "The answer is (B).", "The correct answer is **B**", "\\boxed{B}", "B. a cat"]
PICKS += [
    "<answer>B</answer>",
    "<think>A or B?</think>\n(B) a cat",
    "The answer is B because cats purr",
    "\uff08B\uff09",
]
PICKS += ["```\nB\n```", "A. a dog\nB. a cat\nAnswer: B", "\\boxed{\\text{(B)}}", "B\n", "\u7b54\u6848\uff1aB"]

PICKS += ["The correct option is B", "The right choice is (B).", "B is correct", "(B) is the answer.", "Answer B"]
PICKS += ["Answer: B?", "B because it is not red", "Answer: B. I checked it twice.", "B. a cat. It does not bark."]

NOT_ONE = ["", "A dog sits there", "I think so", "A\nB", "A B C D", "A, B", "A/B", "AB", "A or B", "Answer: A or B"]
NOT_ONE += ["Answer: B\nA", "Answer: A\nAnswer: B", "The answer is not B", "not (B)", "E", "(B) and (C)", "B) or C)"]
NOT_ONE += ["\u0412", "\uff22", "\u0392", "\U0001d401", "<answer>A</answer><answer>B</answer>", "B" * 30_000]


@pytest.mark.parametrize("text", PICKS)
@pytest.mark.parametrize("choices", [None, CHOICES])
def test_selected_options_are_read_in_every_form(text, choices):
    known = {"choices": choices} if choices else {}
    assert value(MultipleChoice(), text, "B", **known) == 1
    assert value(MultipleChoice(), text, "C", **known) == 0  # control


@pytest.mark.parametrize("text", NOT_ONE)
def test_none_or_several_options_are_invalid(text):
    for right in "ABCD":
        assert outcome(MultipleChoice(), text, right, choices=CHOICES) == (0, Status.INVALID)


@pytest.mark.parametrize(
    "text", ["a cat", "A cat.", "A  CAT", "'a cat'", "Answer: A cat", "a\ncat", "The answer is a cat."]
)
def test_option_texts_select_their_option(text):
    assert value(MultipleChoice(), text, "B", choices=CHOICES) == 1
    assert value(MultipleChoice(), text, "a cat", options=CHOICES) == 1
    if "\n" not in text:  # without known texts; an "a" on a separate line is the letter
        assert outcome(MultipleChoice(), text, "B") == (0, Status.INVALID)


@pytest.mark.parametrize(
    "text", ["B. a dog", "(B) a red circle", "Answer: B. a dog", "B: a cat, not a dog", "B\na dog"]
)
def test_letter_with_the_text_of_another_option_is_invalid(text):
    assert outcome(MultipleChoice(), text, "B", choices=CHOICES) == (0, Status.INVALID)


TAKEN_BACK = ["B) wrong", "B. not dog", "B. wrong, none of the above", "B. everything except this", "B: b, c, d"]
TAKEN_BACK += [
    "B. dog and c",
    "Answer: B. I am not sure, might be d",
    "B. Everything but not this one",
    "Answer: (B) c",
]
TAKEN_BACK += ["B. dog. Wrong, I think"]


@pytest.mark.parametrize("text", TAKEN_BACK)
@pytest.mark.parametrize("choices", [None, ["cat", "dog", "cow", "pig"]])
def test_negated_letters_are_invalid(text, choices):
    known = {"choices": choices} if choices else {}
    assert outcome(MultipleChoice(), text, "B", **known) == (0, Status.INVALID)
    assert value(MultipleChoice(), "B. dog", "B", **known) == 1


@pytest.mark.parametrize("text", ["B. zebra", "B) the dogs", "B: no", "B, zebra", "B (zebra)", "B. dog or cow"])
def test_letter_with_unknown_text_is_invalid(text):
    assert outcome(MultipleChoice(), text, "B", choices=["cat", "dog", "cow"]) == (0, Status.INVALID)


@pytest.mark.parametrize(
    "text",
    ["The answer is B, dog.", "The answer is B (dog)", "B (dog)", "B - dog", "B. the dog", "B. dog. It does not purr."],
)
def test_letter_with_its_text_is_valid(text):
    assert value(MultipleChoice(), text, "B", choices=["cat", "dog", "cow"]) == 1
    assert value(MultipleChoice(), text, "C", choices=["cat", "dog", "cow"]) == 0


def test_option_texts_may_contain_other_options():
    choices = {"A": "circle", "B": "red circle"}
    assert value(MultipleChoice(), "B. red circle", "B", choices=choices) == 1
    assert value(MultipleChoice(), "red circle", "B", choices=choices) == 1
    assert value(MultipleChoice(), "circle", "B", choices=choices) == 0


def test_numeric_and_lettered_option_texts():
    assert value(MultipleChoice(), "2", 2, choices=[1, 2]) == value(MultipleChoice(), "B", "2", choices=[1, 2]) == 1
    lettered = ["A. dog", "B. cat"]
    assert (
        value(MultipleChoice(), "cat", "B", choices=lettered)
        == value(MultipleChoice(), "B. cat", "B", choices=lettered)
        == 1
    )


def test_duplicate_option_texts_need_the_letter():
    assert value(MultipleChoice(), "A", "A", choices=["dog", "dog"]) == 1
    assert outcome(MultipleChoice(), "dog", "A", choices=["dog", "dog"]) == (0, Status.INVALID)


@pytest.mark.parametrize(
    "known",
    [
        {"answer": "E"},
        {"answer": "AB"},
        {"answer": ["B"]},
        {"answer": None},
        {"choices": "ABCD"},
        {"choices": {"1": "x"}},
        {"choices": {"AB": "x"}},
        {"choices": []},
        {"choices": [["x"], ["y"]]},
        {"choices": ["x"] * 27},
    ],
)
def test_unknown_reference_options_are_scorer_failures(known):
    assert outcome(MultipleChoice(), "B", **{"answer": "B", "choices": CHOICES, **known})[1] is Status.ERROR


def test_look_alike_letters_are_reported():
    output = MultipleChoice().score([ask("\u0410", "A")])
    assert "CYRILLIC CAPITAL LETTER A" in output.detail[0]["multiple_choice"]


def test_letters_are_those_of_the_alphabet():
    assert value(MultipleChoice("AB"), "A", "A") == 1
    assert outcome(MultipleChoice("AB"), "C", "A") == (0, Status.INVALID)
    for wrong in ("", "ab", "A1"):
        with pytest.raises(RewardError, match="letters from A to Z"):
            MultipleChoice(wrong)


def test_500_random_selections_are_read_in_random_forms():
    rng = random.Random(0)
    words = [" ".join(pair) for pair in itertools.product(["big", "small", "odd"], ["dog", "cat", "fox", "A-frame"])]
    forms = [
        "{0}",
        "({0})",
        "{0}. {1}",
        "{1}",
        "Answer: {0}",
        "The answer is {1}.",
        "\\boxed{{{0}}}",
        "**{0}**",
        "{0}) {1}",
    ]
    for _ in range(500):
        choices = rng.sample(words, rng.randint(2, 8))
        letters = "ABCDEFGH"[: len(choices)]
        picked, right = rng.choice(letters), rng.choice(letters)
        text = rng.choice(forms).format(picked, choices[letters.index(picked)])
        assert value(MultipleChoice(), text, right, choices=choices) == (picked == right), (text, choices)
