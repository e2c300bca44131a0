"""MathVista's rule, as its own script compares answers."""

import pytest

from mmrl.rewards import Status
from mmrl.rewards.rules.chart_answers import MathVista, normalised, selected_choice

from .single_answer import outcome, value

CHOICES = ["larger than", "equal to", "smaller than"]


@pytest.mark.parametrize(
    ("answer", "option"),
    [
        ("B", "equal to"),
        ("b.", "equal to"),
        ("(C) smaller than", "smaller than"),
        ("I think it is (a)", "larger than"),
        ("equal to", "equal to"),
        ("equals", "equal to"),  # the nearest by edit distance, as published
        ("D", "equal to"),  # no option of that letter: read as a text, whose nearest is the shortest
    ],
)
def test_answers_select_the_option_by_letter_or_nearest_text(answer, option):
    assert selected_choice(answer, CHOICES) == option
    known = {"question_type": "multi_choice", "answer_type": "text", "choices": CHOICES}
    assert value(MathVista(), answer, option, **known) == 1
    assert sum(value(MathVista(), answer, other, **known) for other in CHOICES) == 1


@pytest.mark.parametrize(
    ("answer", "answer_type", "precision", "normal"),
    [
        ("7", "integer", None, "7"),
        ("7.9", "integer", None, "7"),
        (" 7 ", "integer", None, "7"),
        ("seven", "integer", None, None),
        ("1.249", "float", 1, "1.2"),
        ("1.2", "float", 2, "1.2"),
        ("3", "float", 1, "3.0"),
        ("inf", "integer", None, None),
        ("[1, 2]", "list", None, "[1, 2]"),
        ("Paris", "text", None, "Paris"),
    ],
)
def test_free_answers_are_normalised_by_type(answer, answer_type, precision, normal):
    assert normalised(answer, answer_type, precision) == normal
    known = {"question_type": "free_form", "answer_type": answer_type, "precision": precision}
    assert value(MathVista(), answer, normal or "7", **known) == (normal is not None and normal == (normal or "7"))
    assert value(MathVista(), answer, "8", **known) == 0


@pytest.mark.parametrize(
    "text", ["\\boxed{12}", "So the answer is 12.", "<think>11</think><answer>12</answer>", "**12**"]
)
def test_answer_is_extracted_from_its_context(text):
    assert value(MathVista(), text, "12", question_type="free_form", answer_type="integer") == 1


def test_several_answers_are_invalid_and_bad_references_scorer_failures():
    known = {"question_type": "free_form", "answer_type": "integer"}
    assert outcome(MathVista(), "The answer is 1.\nThe answer is 2.", "1", **known) == (0, Status.INVALID)
    assert outcome(MathVista(), "1", 1, **known)[1] is Status.ERROR
    assert outcome(MathVista(), "A", "x", question_type="multi_choice", choices=None)[1] is Status.ERROR
