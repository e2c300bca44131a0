"""Answers to multiple-choice questions made to pick everything, or nothing that can be seen.

Each gives a score or a status, never an exception; none but the right pick is perfect; the right one always is.
"""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, Status
from mmrl.rewards.rules.multiple_choice import MultipleChoice

CHOICES = {"A": "the dog's bowl", "B": 'a "cat"', "C": "it's a {circle}", "D": "D\u00fcrer's hare"}


def run(texts, right="B", choices=CHOICES):
    """Scores and statuses; the right letter and the right text stand at the end, as the controls."""
    texts = [*texts, right, f"({right}) {choices[right]}", choices[right]]
    references = {"answer": right, "choices": choices}
    output = MultipleChoice().score([RewardInput("0", 0, "?", text=text, references=references) for text in texts])
    values, status = output.values["multiple_choice"], output.status["multiple_choice"]
    assert set(status) <= {Status.OK, Status.INVALID}, output.detail
    assert (values[-3:] == 1).all(), output.detail[-3:]
    return values[:-3], status[:-3]


@pytest.mark.parametrize("right", "ABCD")
@pytest.mark.parametrize(
    "mark", [" ", ", ", ",", "/", "\n", "", " or ", " and ", ") ", ". ", ".\n", ")\n", "|", "; ", "\t", "&"]
)
def test_selecting_every_option_is_invalid(right, mark):
    texts = []
    for letters in ("ABCD", "DCBA", "AB", "BA", "BC", "CB"):
        listed = mark.join(letters)
        texts += [
            listed,
            f"Answer: {listed}",
            f"<answer>{listed}</answer>",
            f"\\boxed{{{listed}}}",
            f"({listed})",
            f"**{listed}**",
        ]
        texts.append(mark.join(f"{letter}. {CHOICES[letter]}" for letter in letters))
        texts.append(mark.join(CHOICES[letter] for letter in letters))
        texts.append(mark.join(f"({letter})" for letter in letters))
    values, status = run(texts, right)
    perfect = [text for text, value in zip(texts, values, strict=True) if value == 1]
    assert perfect == [] and set(status) == {Status.INVALID}


TWO_ANSWERS = ["<answer>{0}</answer><answer>{1}</answer>", "Answer: {0}\nAnswer: {1}", "{0}\n{1}", "{0}.\n\n{1}."]
TWO_ANSWERS += ["\\boxed{{{0}}} \\boxed{{{1}}}", "<answer>{0}</answer> \\boxed{{{1}}}", "Answer: {0}\n{1}"]
TWO_ANSWERS += ["The answer is {0}. The answer is {1}."]


@pytest.mark.parametrize("form", TWO_ANSWERS)
def test_several_answers_are_invalid(form):
    for first, second in itertools.permutations("ABCD", 2):
        _, status = run([form.format(first, second)], second)
        assert status == [Status.INVALID]


def test_look_alike_characters_are_not_letters():
    texts = [
        "\u0412",
        "\u0392",
        "\uff22",
        "\U0001d401",
        "\u24b7",
        "\U0001f171",
        "\u1d2e",
        "\u16d2",
        "B\u0301",
        "\u200bB\u200b",
    ]
    values, status = run(texts + [f"({text})" for text in texts] + [f"Answer: {text}" for text in texts])
    assert (values == 0).all() and set(status) == {Status.INVALID}
    values, _ = run(["a \u201ccat\u201d", '\u0430 "cat"', "a 'cat'", 'a "c\u0430t"'])
    assert (values == 0).all()


def test_options_with_quotes_and_braces_are_selected_by_text():
    for letter, text in CHOICES.items():
        values, _ = run(
            [text.upper() if letter != "D" else text, f"Answer: {text}", f"<answer> {letter}: {text}. </answer>"],
            letter,
        )
        assert (values == 1).all(), text


def test_json_fences_and_truncated_answers():
    texts = [
        '{"answer": {"choice": "B"}}',
        '```json\n{"answer": "B"}\n```',
        '{"answer": "B',
        "<answer>B",
        "<think>B",
        "\\boxed{B",
    ]
    values, _ = run(texts)
    assert (values == 0).all()
    values, _ = run(["```\nB\n```", "```\n(B)\n```"])
    assert (values == 1).all()


def test_hostile_texts_are_invalid():
    hostile = [
        "(" * 19_000,
        "A" * 19_000,
        "A. " * 6_000,
        "answer is " * 1_900,
        "**" * 9_000,
        " \n" * 9_000,
        "\\text{" * 3_000,
    ]
    values, status = run([*hostile, *(text * 100 for text in hostile), "\x00", "\ud83d", "\u202eB", ""])
    assert (values == 0).all() and set(status) == {Status.INVALID}


@given(st.text(max_size=60))
def test_any_text_is_scored_or_invalid(text):
    values, _ = run([text, f"<answer>{text}</answer>", f"Answer: {text}"])
    if not any(sign in text for sign in "Bb") and "cat" not in text:
        assert (values < 1).all()


@given(st.text(alphabet="ABCDabcd ().:,\n*", max_size=14))
def test_no_text_is_right_for_two_questions(text):
    """Every text is the right answer to at most one question."""
    assume(text.strip())
    picks = [letter for letter in "ABCD" if run([text], letter)[0][0] == 1]
    assert len(picks) <= 1


@pytest.mark.integration
@given(
    st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=2, max_size=12), min_size=2, max_size=6),
    st.data(),
)
def test_letter_and_text_of_every_option_are_perfect(options, data):
    plain = [" ".join(option.casefold().split()).strip(".\"'`\u2018\u2019\u201c\u201d$ ") for option in options]
    assume(all(len(option) > 1 and "answer" not in option and "\u7b54\u6848" not in option for option in plain))
    assume(len(set(plain)) == len(plain) and not any("**" in option or "boxed" in option for option in options))
    letter = data.draw(st.sampled_from("ABCDEF"[: len(options)]))
    references = {"answer": letter, "choices": options}
    text = options["ABCDEF".index(letter)]
    for answer in (letter, f"({letter})", f"Answer: {letter}", text):
        output = MultipleChoice().score([RewardInput("0", 0, "?", text=answer, references=references)])
        assert output.values["multiple_choice"][0] == 1, (answer, output.detail)
