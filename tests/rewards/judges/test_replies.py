"""From a reply to a number, a choice or an order: closed forms, and texts that must not be read."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.judges import replies

SPELLINGS = ["{}", " {}", "▁{}", "Ġ{}", "{}.", "**{}", '"{}"', "{}\n", "{},"]


def test_yes_probability_is_a_logistic_of_the_difference():
    """Two words of log-odds d: P(yes) / (P(yes) + P(no)) = 1 / (1 + exp(-d)), for any mass of other words."""
    rng = random.Random(0)
    for _ in range(500):
        odds, other = rng.uniform(-12, 12), rng.uniform(0, 0.9)
        p = 1 / (1 + math.exp(-odds))
        tokens = {"Yes": math.log((1 - other) * p), "No": math.log((1 - other) * (1 - p))}
        if other:
            tokens["Maybe"] = math.log(other)
        assert replies.yes_probability(tokens, "yes", "no") == pytest.approx(p, rel=1e-9, abs=1e-12)


def test_yes_probability_sums_over_spellings():
    rng = random.Random(1)
    for _ in range(500):
        tokens, mass = {}, {"yes": 0.0, "no": 0.0}
        for word in mass:
            for form in rng.sample(SPELLINGS, rng.randint(1, len(SPELLINGS))):
                p = rng.uniform(0, 0.05)
                tokens[form.format(rng.choice([word, word.upper(), word.title()]))] = math.log(p)
        for token, logprob in tokens.items():
            mass["yes" if "yes" in token.lower() else "no"] += math.exp(logprob)
        if sum(mass.values()) < replies.MIN_PROBABILITY:
            continue
        expected = mass["yes"] / sum(mass.values())
        assert replies.yes_probability(tokens, "yes", "no") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "token", ["Yesterday", "Nothing", "not", "Now", "Ye", "y", "ye s", "yesno", "\uff59\uff45\uff53"]
)
def test_yes_probability_ignores_other_words(token):
    tokens = {token: math.log(0.9), "Yes": math.log(0.03), "No": math.log(0.01)}
    assert replies.yes_probability(tokens, "yes", "no") == pytest.approx(0.75)


@pytest.mark.parametrize("tokens", [{}, {"The": -0.1, "A": -2.0}, {"<think>": 0.0, "Yes": -9.0, "No": -20.0}])
def test_yes_probability_fails_if_other_words_dominate(tokens):
    with pytest.raises(ScoringFailed) as failed:
        replies.yes_probability(tokens, "yes", "no")
    assert failed.value.kind == "unparseable"


def test_impossible_words_have_no_probability():
    assert replies.yes_probability({"Yes": -9999.0, "No": -0.01}, "yes", "no") == 0.0
    assert replies.yes_probability({"Yes": -0.01, "No": -math.inf}, "yes", "no") == 1.0


@pytest.mark.parametrize(
    "text",
    ["yes", "Yes", " YES. ", "**Yes**", '"yes"', "yes!", "Answer: yes", "It has two circles.\nAnswer: Yes.",
     "<think>no, no, no</think>\n\nYes", "**Answer: yes**", "Final answer: Yes", "reasoning ...</think> yes"],
)  # fmt: skip
def test_plain_yes_and_no_are_read(text):
    assert replies.parse_choice(text, ("yes", "no")) == "yes"


@pytest.mark.parametrize(
    "text",
    ["", " ", "yes or no", "Yes, but no", "yesno", "Not at all", "It is yes", "Yes it is", "maybe", "y", "1", "true",
     "<think>yes", "yes</think>", "Answer: maybe", "yes yes", "Answer:", "\uff59\uff45\uff53", "yes\nno"],
)  # fmt: skip
def test_other_texts_are_not_read_as_yes_or_no(text):
    with pytest.raises(ScoringFailed) as failed:
        replies.parse_choice(text, ("yes", "no"))
    assert failed.value.kind == "unparseable" and not failed.value.transient


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("0", 0), ("10", 10), ("7.5", 7.5), ("7/10", 7), ("7 / 10", 7), ("7 out of 10", 7), ("**8**", 8),
     ("Score: 3", 3), ("Two are missing.\nRating: 4/10.", 4), ("<think>2</think>9", 9), ("+3", 3)],
)  # fmt: skip
def test_numbers_on_the_scale_are_read(text, value):
    assert replies.parse_number(text, 0, 10) == value


@pytest.mark.parametrize(
    "text",
    ["", "11", "-1", "7/5", "7 or 8", "7-8", "seven", "7 8", "1e1", "nan", "inf", "\u0667", "\uff17", "0x7", "7%",
     "7,5", "9999999999999", "7/0", "10/100", "I give it a 7"],
)  # fmt: skip
def test_numbers_off_the_scale_or_ambiguous_are_rejected(text):
    with pytest.raises(ScoringFailed):
        replies.parse_number(text, 0, 10)


@pytest.mark.parametrize(
    "text",
    ["3 > 1 > 2", "3>1>2", "[3, 1, 2]", "3, 1, 2", "3 1 2", "Ranking: 3 > 1 > 2", "**3 > 1 > 2**", "(3, 1, 2).",
     "The third is best.\nRanking: [3, 1, 2]", "<think>1 > 2 > 3</think>\n3 > 1 > 2", "3\n1\n2"],
)  # fmt: skip
def test_orders_are_read(text):
    assert replies.parse_order(text, 3) == [2, 0, 1]


@pytest.mark.parametrize(
    "text",
    ["", "1 > 2", "1 > 2 > 2", "1 > 2 > 3 > 4", "0 > 1 > 2", "1 > 2 > x", "1 < 2 < 3", "1 = 2 > 3", "-1 > 2 > 3",
     "1.0 > 2 > 3", "A > B > C", "\uff11 > 2 > 3", "\u00b2  1 3", "1 > 2 > 99999999999999999999", "all alike"],
)  # fmt: skip
def test_texts_that_are_no_permutation_are_rejected(text):
    with pytest.raises(ScoringFailed) as failed:
        replies.parse_order(text, 3)
    assert failed.value.kind == "unparseable"


@given(st.permutations(list(range(9))), st.sampled_from([" > ", ">", ", ", " ", "\n"]))
def test_every_permutation_round_trips(places, between):
    assert replies.parse_order(between.join(str(place + 1) for place in places), 9) == places


@given(st.text(), st.integers(1, 5))
def test_any_text_gives_a_verdict_or_a_failure(text, size):
    for read in (
        lambda: replies.parse_choice(text, ("yes", "no")) in ("yes", "no"),
        lambda: 0 <= replies.parse_number(text, 0, 10) <= 10,
        lambda: sorted(replies.parse_order(text, size)) == list(range(size)),
    ):
        try:
            assert read()
        except ScoringFailed as failed:
            assert failed.kind == "unparseable"


@pytest.mark.parametrize("text", [" " * 10**6, "1" * 10**6, "1 > " * 10**5, "answer" + " " * 10**6, "*" * 10**6])
def test_long_replies_are_parsed_quickly(text):
    begun = time.process_time()
    for read in (lambda: replies.parse_choice(text, ("yes",)), lambda: replies.parse_number(text, 0, 1),
                 lambda: replies.parse_order(text, 2)):  # fmt: skip
        with pytest.raises(ScoringFailed) as failed:
            read()
        assert len(str(failed.value)) < 300
    assert time.process_time() - begun < 2
