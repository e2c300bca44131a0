"""Answers that try to break, or to fool, the rewards for counts, forms, lengths and repetition."""

import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmrl.rewards import Status
from mmrl.rewards.rules.formats import Format
from mmrl.rewards.rules.lengths import CosineLength, Length, Repetition, SoftOverlong
from mmrl.rewards.rules.numeric import CountExact, CountGraded

from ..rules.single_answer import ask, outcome

GOOD = "<think>two and one</think><answer>3</answer>"
COUNTS = [CountExact(), CountGraded()]
SHAPES = [
    Format(),
    Format(strict=False, opened=True),
    Length(target=5, unit="words"),
    Length(limit=5, unit="characters"),
    CosineLength(50, of="count_exact", unit="characters"),
    SoftOverlong(50, 20, unit="words"),
    Repetition(),
    Repetition(1),
]
ALL = [*COUNTS, *SHAPES]
BY_NAME = {"argvalues": ALL, "ids": [f"{reward.name}-{at}" for at, reward in enumerate(ALL)]}
PIECES = st.sampled_from(
    [
        *["<think>", "</think>", "<answer>", "</answer>", "<Think>", "\\boxed{", "}", "```", "\n", " ", ",", ".", "-"],
        *["0", "1", "2", "4", "10", "99999999999999", "1e9", "2.5", "NaN", "inf", "３", "²", "٣", "З", "−"],  # noqa: RUF001
        *["zero", "one", "two", "four", "twenty", "-one", "hundred", "thousand", "and", "not", "answer:", "it's", "圆"],
    ]
)
SOUP = st.lists(PIECES, max_size=25).map("".join)


def defined(reward, text):
    """A finite score within the range, or an invalid answer at its worst: never an exception, never NaN."""
    output = reward.score([ask(text, 3)])
    value, status = float(output.values[reward.name][0]), output.status[reward.name][0]
    low, high = reward.range
    assert status in (Status.OK, Status.INVALID), (text[:200], output.detail)
    assert low <= value <= high
    assert status is Status.OK or (value == low and output.detail[0][reward.name])
    return value


@pytest.mark.parametrize("reward", **BY_NAME)
@given(text=st.one_of(SOUP, st.text(max_size=60)))
@example(text="")
@example(text="\x00")
@example(text="\ud800")
def test_texts_of_random_tags_and_numbers_have_a_defined_score(reward, text):
    defined(reward, text)


@given(st.lists(PIECES.filter(lambda piece: piece not in ("answer:",)), max_size=8).map(" ".join))
def test_random_texts_without_a_three_are_not_a_count_of_three(text):
    """`PIECES` can say neither 3 nor three, but can look like it."""
    for reward in COUNTS:
        assert outcome(reward, GOOD, 3) == (1, Status.OK)
        assert defined(reward, text) < 1


@given(st.integers(0, 10**13), st.integers(0, 10**12))
@example(10**12 - 1, 10**12)
def test_counts_are_perfect_exactly_if_true(count, truth):
    for reward in COUNTS:
        for text in (f"{count}", f"There are {count:,}.", f"<answer>{count}</answer>", f"1 or 2? Answer: {count}"):
            value, status = outcome(reward, text, truth)
            assert (value == 1) == (count == truth), text
            assert (status is Status.OK) == (count <= 10**12)
        assert outcome(reward, f"It is {truth:,}.", truth) == (1, Status.OK)


@pytest.mark.parametrize(
    "text",
    [
        "0 1 2 3 4 5 6 7 8 9",
        "one, two, three, four",
        "3 or 4",
        "<answer>3</answer><answer>3</answer>",
        "<answer>3</answer> <answer>4</answer>",
        "<answer>3",
        "3</answer>",
        "<think>3",
        "Answer: 3. Answer: 4.",
        "-3",
        "3.1",
        "not 3",
        "３",  # noqa: RUF001
        "³",
        "З",  # noqa: RUF001
        "thrее",  # noqa: RUF001
        "three" * 3000,
        "3 " * 6000,
    ],
)
def test_texts_that_contain_a_three_are_not_a_count_of_three(text):
    for reward in COUNTS:
        assert outcome(reward, text, 3) == (0, Status.INVALID)
        assert outcome(reward, "3", 3) == (1, Status.OK)


@given(SOUP)
def test_format_requires_both_pairs_of_tags_once_and_nothing_around(text):
    value = defined(Format(), text)
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    places = [text.find(tag) for tag in tags]
    plausible = all(text.count(tag) == 1 for tag in tags) and places == sorted(places)
    around = text.strip().startswith(tags[0]) and text.strip().endswith(tags[3])
    assert value == 0 or (plausible and around)
    assert defined(Format(), GOOD) == 1


@given(st.text(st.characters(exclude_characters="<>"), min_size=1), st.text(st.characters(exclude_characters="<>")))
def test_format_ignores_the_content_of_tags(thought, answer):
    assert defined(Format(), f"<think>x{thought}</think>\n<answer>{answer}'x</answer>") == 1


@given(st.text(max_size=200), st.integers(1, 5))
def test_repetition_never_increases_the_score_and_stays_above_minus_one(text, ngram):
    reward = Repetition(ngram)
    once, twice = defined(reward, text), defined(reward, f"{text} {text}")
    assert twice <= once + 1e-6 and twice > -1


@given(st.integers(0, 10**12), st.integers(1, 10**9))
def test_length_scores_stay_in_range_and_are_perfect_within_bounds_only(length, bound):
    for reward, within in ((Length(target=bound), length == bound), (Length(limit=bound), length <= bound)):
        value, status = outcome(reward, "x", metadata={"tokens": length})
        assert status is Status.OK and (value == 1) == within and 0 <= value <= 1
    value, status = outcome(SoftOverlong(bound, bound // 2), "x", metadata={"tokens": length})
    assert status is Status.OK and -1 <= value <= 0
    assert (value == 0) == (length <= bound - bound // 2) or value > -1e-6
    value, status = outcome(CosineLength(bound, of="count_exact"), "3", 3, {"tokens": length})
    assert status is Status.OK and np.isfinite(value) and (value == -1) == (length >= bound)


BOMBS = {
    "tags": "<think>" * 100_000,
    "closings": "</answer>" * 100_000,
    "boxed": "\\boxed{" * 100_000,
    "digits": "9" * 999_999,
    "short digits": "9" * 9999,
    "commas": "1," * 4999,
    "dots": "1." * 4999,
    "words": "one " * 2499,
    "hyphens": "twenty-" * 1400,
    "hundreds": "hundred and " * 800,
    "answers": "answer: " * 1200,
    "spaces": " " * 999_999,
    "invisible": "\u200b" * 999_999,
    "one word": "x" * 999_999,
    "many words": "x " * 499_999,
    "chinese": "圆" * 999_999,
    "too long": "x" * 1_000_001,
}


@pytest.mark.parametrize("reward", **BY_NAME)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_huge_inputs_are_rejected_quickly(reward, bomb):
    started = time.thread_time()
    defined(reward, bomb)
    assert time.thread_time() - started < 10  # CPU seconds; about 1 on an ordinary machine
