"""Finding the final answer in a text."""

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.final_answer import final_answer, first_sentence, stated_answers, strip_bold


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3", "3"),
        ("<think>\\boxed{4}</think> so \\boxed{3}", "3"),
        ("<think>4</think><answer>3</answer>", "3"),
        ("<answer>It is \\boxed{3}.</answer>", "3"),
        ("\\boxed{3}, that is <answer>3</answer>", "3"),
        ("<answer>\\boxed{\\frac{1}{2}}</answer>, again \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("", ""),
    ],
)
def test_boxed_answers_are_found_inside_and_outside_tags(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{3} or \\boxed{4}",
        "<answer>3</answer> \\boxed{4}",
        "<answer>\\boxed{3}</answer> \\boxed{4}",
        "\\boxed{\\boxed{3}}",
        "\\boxed{3",
        "<answer>3</answer><answer>3</answer>",
        "<answer>3",
        "<think>3",
    ],
)
def test_several_or_truncated_answers_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        final_answer(text)


def test_other_answer_formats_are_returned_verbatim():
    assert final_answer("<answer>3 \\boxed{4}</answer>", "tags") == "3 \\boxed{4}"
    assert final_answer("3 \\boxed{4}", "plain") == "3 \\boxed{4}"
    assert final_answer("3 \\boxed{4}", "boxed") == "4"


@pytest.mark.parametrize(
    ("text", "finals"),
    [
        ("Answer: 3", ["3"]),
        ("**Answer:** 3", ["3"]),
        ("The final answer is: **3**. Yes.\nSo it is.", ["3. Yes."]),
        ("answer = 3", ["3"]),
        ("Answer:\n\n3\n4", ["3"]),
        ("Answer: 3\nAnswer: 3", ["3"]),
        ("Answer: 3, or answer: 4", ["3, or", "4"]),
        ("\u7b54\u6848\uff1a3", ["3"]),
        ("An answerable question", []),
        ("The answer isn't 3", []),
        ("Answer:", []),
    ],
)
def test_text_after_the_lead_in_is_the_final_answer(text, finals):
    assert stated_answers(text) == finals


def test_bold_marks_are_removed_but_powers_are_not():
    assert strip_bold("**3** and 2**3 and (x)**(y) and **Answer:** B") == "3 and 2**3 and (x)**(y) and Answer: B"


@pytest.mark.parametrize(("text", "sentence"), [("3. And 4", "3"), ("3.5", "3.5"), ("3.", "3"), ("3! + 1", "3! + 1")])
def test_sentences_end_at_a_full_stop_followed_by_space(text, sentence):
    assert first_sentence(text) == sentence
