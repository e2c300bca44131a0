"""The environment of two turns in which a judge picks criteria and rechecks them."""

from __future__ import annotations

import pytest

from mmrl.data import DataError, Sample
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.environments import EpisodeBatch, load_environment
from mmrl.errors import ConfigError

READER = MediaReader(MediaBudget())
CRITERIA = ("number", "colour", "shape")
PAIR = Sample("1", "3 red circles", answer="B", metadata={"dimension": "colour", "criteria": list(CRITERIA)})


def played(*turns, **args):
    """Return the outcome, and what the judge read after its first turn."""
    batch = EpisodeBatch(load_environment("rechecks", **args), [PAIR], READER)
    read = [batch.step({0: turn})[0].observation for turn in turns]
    (outcome,) = batch.outcomes()
    return outcome, (read[0].text if read[0] else None)


def test_the_second_turn_rechecks_what_the_first_picked():
    outcome, read = played("colour red blue; number 3 3", "<think>colour red blue</think>B", message="again: {picked}")
    assert read == "again: colour, number"  # in the order of the text
    form = '{"verdict": "A" or "B"} of {picked}'
    assert played("colour", "B", message=form)[1] == '{"verdict": "A" or "B"} of colour'
    assert outcome == {"void": None, "success": True, "right": True, "form": True, "picked": 2, "found": True}


@pytest.mark.parametrize(
    "first, second, right",
    [
        ("nothing stands out", "B", True),  # picks none
        ("number, colour, shape", "B", True),  # picks all
        ("colour", "number 3 2, so B.\nB", True),  # rechecks another one
        ("colour", "neither", False),  # no verdict
        ("colour", None, False),  # cut off
    ],
)
def test_what_is_out_of_form_is_no_success(first, second, right):
    outcome, _ = played(first, second, most=2)
    assert not outcome["success"] and not outcome["form"] and outcome["right"] is right


def test_a_wrong_verdict_in_form_is_no_success():
    outcome, _ = played("number", "A")
    assert outcome["form"] and not outcome["success"] and not outcome["found"]


def test_a_name_within_a_word_is_not_picked():
    assert played("numbered shapes", "B")[0]["picked"] == 0


def test_a_first_turn_that_was_cut_off_ends_the_episode():
    outcome, read = played(None)
    assert read is None and not outcome["success"]


def test_settings_and_samples_are_checked():
    with pytest.raises(ConfigError, match="0 criteria; at least one"):
        load_environment("rechecks", most=0)
    with pytest.raises(ConfigError, match="must have the slot"):
        load_environment("rechecks", message="again")
    for sample, problem in (
        (Sample("x", answer="C"), "'C'; a judge's is A or B"),
        (Sample("x", answer="A"), "criteria"),
    ):
        with pytest.raises(DataError, match=problem):
            load_environment("rechecks").begin(sample, READER)
