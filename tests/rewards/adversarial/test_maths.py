"""Mathematical and numeric answers made to break a verifier or to cheat it.

Each gives a score or a status, never an exception; none but the right answer is perfect; the right one always is.
"""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, Status
from mmrl.rewards.rules.chart_answers import ChartRelaxed
from mmrl.rewards.rules.maths import Maths
from mmrl.rewards.rules.numeric import Numeric

NUMBERS = [Numeric(), Numeric(0.01, 0.01), ChartRelaxed()]
MATHS = Maths(timeout_s=1)
PATIENT = Maths(timeout_s=20)

TWO_ANSWERS = [
    "<answer>{0}</answer><answer>{1}</answer>",
    "<answer>{0}</answer> \\boxed{{{1}}}",
    "\\boxed{{{0}}} \\boxed{{{1}}}",
]
TWO_ANSWERS += [
    "Answer: {0}\nAnswer: {1}",
    "${0}$ or ${1}$",
    "{0} or {1}",
    "{0}, {1}",
    "{0} {1}",
    "{0}\n{1}",
    "{0};{1}",
]
TWO_ANSWERS += ["{0} = {1}", "x = {0}, x = {1}", "[{0}, {1}]", "{0} \\text{{ or }} {1}", "{0}|{1}", "{0}/{0} or {1}"]
TWO_ANSWERS += [
    "<answer>{0}",
    "<think>{0} {1}",
    "not {0}, but {1}",
    '{{"answer": {0}, "other": {1}}}',
    "```\n{0}\n```\n```\n{1}\n```",
]
LOOK_ALIKES = ["\uff17", "\u0667", "\U0001d7d5", "\u2166", "\u2477", "\u06f7", "7\u00b0\u00b2", "\u2077"]
NO_NUMBERS = [
    "",
    " ",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "\u221e",
    "1e999999",
    "--7",
    "+-7",
    "7e",
    "0x7",
    "7_",
    "seven\u0660",
]


def run(reward, texts, answer):
    """Scores and statuses; the right answer stands at the end, as the control."""
    items = [RewardInput("0", 0, "?", text=text, references={"answer": answer}) for text in [*texts, str(answer)]]
    output = reward.score(items)
    values, status = output.values[reward.name], output.status[reward.name]
    assert set(status) <= {Status.OK, Status.INVALID}, output.detail
    assert values[-1] == 1 and status[-1] is Status.OK
    perfect = [text for text, value in zip(texts, values[:-1], strict=True) if value == 1]
    return values[:-1], status[:-1], perfect


@pytest.mark.parametrize("reward", [*NUMBERS, PATIENT])
def test_several_answers_are_not_the_right_one(reward):
    texts = [form.format(*pair) for form in TWO_ANSWERS for pair in (("7", "8"), ("8", "7"))]
    _, _, perfect = run(reward, texts, 7)
    assert perfect == []


@pytest.mark.parametrize("reward", [*NUMBERS, PATIENT])
def test_lists_of_every_number_are_not_the_right_answer(reward):
    numbers = [str(n) for n in range(20)]
    _, _, perfect = run(
        reward, [mark.join(numbers) for mark in (" ", ", ", ",", "\n", "=", ";", " or ", "/", "|", "-", "+")], 7
    )
    assert perfect == []


@pytest.mark.parametrize("reward", [*NUMBERS, PATIENT])
def test_look_alikes_and_non_numbers_are_invalid(reward):
    _, _, perfect = run(reward, LOOK_ALIKES + NO_NUMBERS, 7)
    assert perfect == (["--7"] if reward is PATIENT else [])  # which is 7 in mathematics


@pytest.mark.parametrize("reward", [*NUMBERS, PATIENT])
def test_every_form_of_the_right_answer_is_perfect(reward):
    texts = [
        "7",
        " 7\n",
        "7.0",
        "7.",
        "+7",
        "\\boxed{7}",
        "<answer>7</answer>",
        "<think>8</think>7",
        "Answer: 7",
        "$7$",
        "14/2",
    ]
    texts += [
        "**Answer:** 7",
        "The answer is 7.",
        "<answer>\\boxed{7}</answer>",
        "\\frac{14}{2}",
        "7 \\times 10^{0}",
        "7e0",
    ]
    values, _, _ = run(reward, texts, 7)
    assert [text for text, value in zip(texts, values, strict=True) if value != 1] == []


BOMBS = ["10^{10^{10}}", "9!!!!!!", "(x+1)^{100000}", "\\sum_{i=1}^{10^{9}} \\sin(i)", "{" * 45 + "1" + "}" * 45]
BOMBS += ["\\frac{1}{1+" * 40 + "1" + "}" * 40]
HARMLESS = [
    "{" * 2000,
    "}" * 100,
    "{" * 500 + "1" + "}" * 500,
    "\\frac" * 300,
    "\\boxed{" * 10_000,
    "7" * 100_000,
    "\\" * 1999,
]
HARMLESS += ["$" * 1999, "answer: " * 200, "\\(" * 900, "1/" * 900, "e" * 1900 + "1", "\x00", "\ud83d", "7} \\boxed{7"]


@pytest.mark.slow
def test_expensive_formulas_are_stopped_in_their_workers():
    started = time.perf_counter()
    values, status, _ = run(MATHS, [f"\\boxed{{{bomb}}}" for bomb in BOMBS], "7")
    assert values.tolist() == [0] * len(BOMBS) and set(status) == {Status.INVALID}
    assert time.perf_counter() - started < 120


def test_harmless_texts_never_reach_the_workers():
    _, status, perfect = run(PATIENT, HARMLESS, "7")
    assert perfect == [] and set(status) == {Status.INVALID}
    for reward in NUMBERS:
        assert run(reward, HARMLESS, "7")[2] == []


@given(st.text(alphabet="0123456789.,-+/%$ex\\{}()[]= \n", max_size=30))
def test_texts_of_numbers_are_scored_or_invalid(text):
    for reward in NUMBERS:
        run(reward, [text, f"<answer>{text}</answer>", f"\\boxed{{{text}}}"], "1234.5")


@pytest.mark.integration
@given(st.text(alphabet="0123456789.,-+/%^!_ex\\{}()[]=<>| \n", max_size=12))
@settings(max_examples=25)
def test_texts_of_formulas_are_scored_or_invalid(text):
    run(PATIENT, [text, f"\\boxed{{{text}}}"], "\\frac{17}{4}")


@given(st.text(max_size=60))
def test_any_text_is_scored_or_invalid(text):
    for reward in NUMBERS:
        _, _, perfect = run(reward, [text, text[:-1]], "918273.5")
        assert perfect == []


@given(st.decimals(-(10**6), 10**6, allow_nan=False, allow_infinity=False, places=3))
def test_every_number_equals_itself_in_each_form(number):
    for reward in NUMBERS:
        values, _, _ = run(
            reward,
            [f"{number:f}", f"{number:,f}", f"{number:e}", f"x = {number}"][: 3 if reward is NUMBERS[2] else 4],
            f"{number}",
        )
        assert (values == 1).all()
