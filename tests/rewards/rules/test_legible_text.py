"""Characters that cannot be read are flagged, not guessed: by hand, and for every kind of error."""

from __future__ import annotations

import pytest

from mmrl.rewards import Status, load
from mmrl.rewards.core.reward_errors import RewardError

from .single_answer import outcome, value

LEGIBLE, MADE_UP = load("legible_text"), load("hallucinated_text")


@pytest.mark.parametrize(
    "text, expected, made_up",
    [
        ("K?A?", 1.0, 0.0),
        ("KEA?", 0.5, 0.5),
        ("KEAT", 0.0, 1.0),
        ("K?A", 0.75, 0.0),
        ("????", 0.5, 0.0),
        ("KxAx", 0.0, 1.0),
        ("K?X?", 0.5, 0.0),
        ("", 0.0, 0.0),
        ("K?A?Z", 3 / 5, 0.0),
    ],
)
def test_the_mean_over_characters(text, expected, made_up):
    references = {"answer": "KEAT", "unreadable": [1, 3]}
    assert value(LEGIBLE, text, **references) == pytest.approx(expected)
    assert value(MADE_UP, text, **references) == pytest.approx(made_up)


def test_a_needless_flag_is_worth_more_than_a_guess_and_less_than_a_right_character():
    references = {"answer": "KEA", "unreadable": []}
    for args, flagged in (({}, 2 / 3), ({"needless": 0.5}, 2.5 / 3), ({"needless": -1}, 1 / 3)):
        reward = load("legible_text", **args)
        assert value(reward, "K?A", **references) == pytest.approx(flagged)
        assert value(reward, "KEA", **references) == 1
    assert value(load("legible_text", guess=0.5), "KXA", **references) == pytest.approx(0.5)
    assert value(MADE_UP, "XXX", **references) == 0


def test_a_flag_that_is_written_in_the_picture_is_a_character():
    assert value(LEGIBLE, "A?", answer="A?", unreadable=[]) == 1
    assert value(load("legible_text", flag="_"), "A_", answer="A?", unreadable=[1]) == 1


def test_what_cannot_be_compared_is_named():
    for args in ({"guess": 2}, {"needless": -2}, {"flag": ""}, {"flag": "ab"}):
        with pytest.raises(RewardError):
            load("legible_text", **args)
    for references in ({"answer": ""}, {"answer": "AB", "unreadable": [2]}, {"answer": "AB", "unreadable": "1"}):
        assert outcome(LEGIBLE, "AB", **{"unreadable": [], **references})[1] is Status.ERROR
    assert outcome(LEGIBLE, "x" * 20_000, answer="AB", unreadable=[])[1] is Status.INVALID
