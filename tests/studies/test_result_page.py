"""Numbers on the page of a study."""

from __future__ import annotations

import pytest

from mmrl.studies.study_result import decimal


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "+0.000"), (0.12345, "+0.123"), (-1.5, "-1.500"), (2.04e-7, "+2.0e-07"), (-3e-4, "-3.0e-04")],
)
def test_small_numbers_have_digits(value, text):
    assert decimal(value, "+") == text
