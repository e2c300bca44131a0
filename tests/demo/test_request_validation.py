"""Validation of requests, which programs can send instead of the page."""

import math

import pytest

from mmrl.demo.error_handling import DemoError, error_text
from mmrl.demo.request_validation import MOST_PROMPT, guidance_scales, validate_request

FIT = {"columns": ["a"], "prompt": "x", "seed": 0, "rows": 1, "steps": 0, "guidances": "", "rlg": 1}


def ask(**changes):
    return validate_request(**{**FIT, **changes}, known=["a", "b"])


def test_valid_requests_are_normalised():
    found = ask(columns=["b", "a", "b"], prompt=" a dog ", seed=7.0, rows=3, steps=5, guidances="2", rlg=1.5)
    assert (
        found.columns == ("b", "a") and found.prompt == "a dog" and (found.seed, found.rows, found.steps) == (7, 3, 5)
    )
    assert found.guidances == (2.0,) and found.rlg == 1.5 and not found.by_guidance


def test_unset_fields_use_the_trained_settings():
    found = ask(steps=0, guidances="", rlg=1)
    assert found.steps is None and found.guidances == (None,) and found.rlg is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "x" * (MOST_PROMPT + 1)}, "2001 characters"),
        ({"prompt": "  "}, "Write a prompt"),
        ({"prompt": None}, "Write a prompt"),
        ({"prompt": {"a": 1}}, "Write a prompt"),
        ({"columns": ["c"]}, "no checkpoint called 'c'"),
        ({"columns": []}, "Choose 1 to 8"),
        ({"columns": "ab"}, "list of names"),
        ({"columns": [1]}, "list of names"),
        ({"rows": 17}, "group size must"),
        ({"rows": 0}, "group size must"),
        ({"rows": 1.5}, "group size must"),
        ({"rows": True}, "group size must"),
        ({"rows": "4"}, "group size must"),
        ({"seed": -1}, "seed must"),
        ({"seed": math.nan}, "seed must"),
        ({"seed": 1e300}, "seed must"),
        ({"steps": 101}, "Steps must"),
        ({"steps": math.inf}, "Steps must"),
        ({"rlg": 9}, "RLG strength must"),
        ({"rlg": math.nan}, "RLG strength must"),
        ({"rlg": [1]}, "RLG strength must"),
        ({"guidances": "1, x"}, "Guidance must"),
        ({"guidances": "31"}, "Guidance must"),
        ({"guidances": "nan"}, "Guidance must"),
        ({"guidances": ",".join(map(str, range(17)))}, "At most 16 guidance"),
    ],
)
def test_values_out_of_bounds_are_rejected_by_name(changes, message):
    with pytest.raises(DemoError, match=message):
        ask(**changes)


def test_requests_for_too_many_cells_are_rejected():
    names = [f"c{number}" for number in range(8)]
    with pytest.raises(DemoError, match="128 pictures"):
        validate_request(names, "x", 0, 16, 0, "", 1, known=names)


def test_several_guidance_scales_are_rows_of_one_seed():
    found = ask(guidances="1; 2,4,2", rows=9)
    assert found.guidances == (1, 2, 4) and found.rows == 1 and found.by_guidance
    assert guidance_scales(None) == (None,)


def test_error_messages_omit_folders():
    message = error_text(OSError(2, "No such file or directory", "/home/user/secret/run/config.yaml"))
    assert message == "[Errno 2] No such file or directory: 'config.yaml'"
    assert (
        "secret" not in error_text(ValueError("in ~/secret/a.txt and C:\\secret\\b.txt"))
        and len(error_text(ValueError("x" * 999))) == 300
    )
