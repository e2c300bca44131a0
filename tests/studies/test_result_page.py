"""Numbers on the page of a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.studies.result_page import write_study_page
from mmrl.studies.study_result import ArmRecord, StudyResult, best_of_curves, decimal

CURVE = {"steps": [0.0, 8.0, 16.0], "values": [0.1, 0.2, 0.3]}
RESULT = StudyResult(
    study="limit",
    paper={"title": "Limit"},
    verdict="holds",
    claims=(),
    stopping="2 seeds, fixed before",
    seeds=2,
    arms={"before": ArmRecord({}, 16, 64, CURVE), "after": ArmRecord({}, 16, 64, CURVE)},
    measures={},
    also={
        "tokens on validation": {"before": [4.0, 5.0], "after": [6.0, 7.0]},
        **{
            f"right on validation, best of {k} draws (some)": {"before": [k / 10, k / 5], "after": [0.5, 0.7]}
            for k in (4, 1, 2)
        },
    },
    tried=(),
    libraries={},
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "+0.000"), (0.12345, "+0.123"), (-1.5, "-1.500"), (2.04e-7, "+2.0e-07"), (-3e-4, "-3.0e-04")],
)
def test_small_numbers_have_digits(value, text):
    assert decimal(value, "+") == text


def test_the_best_of_three_numbers_of_draws_is_a_curve():
    curves = best_of_curves(RESULT.also)
    assert list(curves) == ["right on validation (some)"]
    assert list(curves["right on validation (some)"]) == [1, 2, 4]
    assert curves["right on validation (some)"][4] == {"before": pytest.approx(0.6), "after": pytest.approx(0.6)}
    two = {name: means for name, means in RESULT.also.items() if "of 4" not in name}
    assert best_of_curves(two) == {}


def test_the_page_draws_the_curve_with_a_scale_of_its_own(tmp_path: Path):
    write_study_page(RESULT, tmp_path, {})
    drawn = (tmp_path / "limit.svg").read_text()
    assert "right on validation (some), best of 2^x draws" in drawn and drawn.count("<polyline") >= 4
    page = (tmp_path / "limit.md").read_text()
    assert "| | before | after |" in page and "base" not in page
    of_base = {name: {**means, "base": [0.125]} for name, means in RESULT.also.items() if "best of" in name}
    write_study_page(replace(RESULT, also=RESULT.also | of_base), tmp_path, {})
    page = (tmp_path / "limit.md").read_text()
    assert "| | before | after | base |" in page and "| tokens on validation | 4.500 | 6.500 |  |" in page
    assert page.count("| 0.600 | 0.125 |") == 3
    plain = replace(RESULT, also={})
    write_study_page(plain, tmp_path / "plain", {})
    assert "best of" not in (tmp_path / "plain" / "limit.svg").read_text()
