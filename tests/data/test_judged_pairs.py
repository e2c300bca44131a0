"""Preference pairs become questions in both orders."""

from __future__ import annotations

import pytest

from mmrl.data import DataError, Sample
from mmrl.data.judged_pairs import both_orders, judged_pairs

PICTURES = Sample(
    "7", "two red circles", chosen="a.png", rejected={"image": "b.png"}, source="votes", metadata={"k": 1}
)
TEXTS = Sample("8", "2 + 2?", chosen="4", rejected="5")


def test_pictures_change_places_and_so_does_the_answer():
    first, second = both_orders(PICTURES, "Which shows {prompt}?")
    assert (first.images, first.answer) == (("a.png", "b.png"), "A")
    assert (second.images, second.answer) == (("b.png", "a.png"), "B")
    assert first.prompt == second.prompt == "Which shows two red circles?"
    assert [each.id for each in (first, second)] == ["7-a", "7-b"]
    for each in (first, second):
        assert each.metadata == {"k": 1, "pair": "7"} and each.source == "votes" and each.task == "judging"
        assert each.chosen is None and each.rejected is None


def test_texts_are_part_of_the_question():
    first, second = judged_pairs([TEXTS], "{prompt}", task=None)
    assert first.prompt == "2 + 2?\nA: 4\nB: 5" and second.prompt == "2 + 2?\nA: 5\nB: 4"
    assert first.images == () and first.task is None


def test_pictures_of_the_prompt_come_before_the_answers():
    request = Sample("9", "Which edit is better?", images=("source.png",), chosen="a.png", rejected="b.png")
    assert both_orders(request)[1].images == ("source.png", "b.png", "a.png")


@pytest.mark.parametrize(
    "sample, problem",
    [
        (Sample("1", "x", chosen="a.png"), "rejected is None; expected a picture or a text"),
        (Sample("1", "x", chosen="a.png", rejected="a text"), "a picture, and the other a text"),
        (Sample("1", messages=({"role": "user", "content": "x"},), chosen="a", rejected="b"), "no messages"),
    ],
)
def test_what_is_no_pair_is_named(sample, problem):
    with pytest.raises(DataError, match=problem):
        both_orders(sample)


def test_a_question_without_its_slot_is_refused():
    with pytest.raises(DataError, match="must have the slot"):
        both_orders(TEXTS, "Which is better?")
