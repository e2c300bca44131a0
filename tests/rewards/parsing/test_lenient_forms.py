"""Forms that the lenient reading takes, what it leaves to the strict parsers, and texts made to cheat it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.config.data import AnswersConfig
from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.parsing.lenient_forms import lenient_boxes, lenient_point, lenient_quotation, lenient_value
from mmrl.rewards.rules.region_iou import BoxIoU

PIXELS = {"space": "pixel", "size": [100, 200]}
BOX = [10, 20, 60, 90]


def scored(name: str, text: str, answer: object, reading: str | None = "lenient") -> float:
    """Return the score of a text, or NaN if it is invalid."""
    references = {"answer": answer, **PIXELS} | ({"reading": reading} if reading else {})
    output = load(name).score([RewardInput("0", 0, "x", text=text, references=references)])
    assert output.status[name][0] in (Status.OK, Status.INVALID), output.detail
    return math.nan if output.status[name][0] is Status.INVALID else float(output.values[name][0])


@pytest.mark.parametrize(
    "text",
    [
        "10, 20, 60, 90",
        "(10, 20, 60, 90)",
        "(10,20,60,90).",
        "x1=10, y1=20, x2=60, y2=90",
        "X1: 10 Y1: 20 X2: 60 Y2: 90",
        '{"x1": 10, "y1": 20, "x2": 60, "y2": 90}',
        '```json\n[{"x1": 10, "y1": 20, "x2": 60, "y2": 90, "label": "cat"}]\n```',
    ],
)
def test_boxes_in_further_forms_are_read_leniently_and_invalid_strictly(text):
    assert scored("box_iou", text, BOX) == 1
    assert scored("box_iou", f"<think>1, 2, 3, 4</think>{text}", BOX) == 1
    assert math.isnan(scored("box_iou", text, BOX, reading=None))
    item = RewardInput("0", 0, "x", text=text, references={"answer": BOX, **PIXELS})
    assert load("box_iou", reading="lenient").score_one(item) == 1


@pytest.mark.parametrize(
    "text",
    [
        "10, 20, 60",
        "10, 20, 60, 90, 95",
        "10, 20, 60, 90 or 10, 20, 60, 91",
        "(10, 20, 60, 90) (1, 2, 3, 4)",
        "x1=10, y1=20, x2=60, y2=90, x1=1, y1=2",
        "x1=10, y1=20, x2=60, y2=90 3",
        "x1=10, x2=60, y1=20, y2=90",
        '{"x1": 10, "y1": 20, "x2": 60}',
        '{"x1": "10", "y1": 20, "x2": 60, "y2": 90}',
        '{"x1": 10, "y1": 20, "x2": 60, "y2": 90, "bbox": [1, 2, 3, 4]}',
        "60, 90, 10, 20",
        "10 20 60 90",
        "１0, 20, 60, 90",  # noqa: RUF001
    ],
)
def test_what_could_be_two_boxes_or_none_stays_invalid(text):
    assert math.isnan(scored("box_iou", text, BOX))


def test_several_named_boxes_are_a_list_for_detection():
    true = [{"box": BOX}, {"box": [1, 2, 9, 8]}]
    assert scored("detection_f1", "x1=10, y1=20, x2=60, y2=90; x1=1, y1=2, x2=9, y2=8", true) == 1
    assert math.isnan(scored("box_iou", "x1=10, y1=20, x2=60, y2=90; x1=1, y1=2, x2=9, y2=8", BOX))


@pytest.mark.parametrize("space", ["pixel", "norm_1", "norm_1000"])
def test_points_of_molmo_and_paligemma_are_fractions_of_the_picture(space):
    width, height = {"pixel": (100, 200), "norm_1": (1, 1), "norm_1000": (1000, 1000)}[space]
    for text in ('<point x="25.0" y="50" alt="cat">cat</point>', "<loc0512><loc0256>", "<loc0512><loc0256> cat"):
        assert lenient_point(text, space, (100, 200)) == f"[{width / 4}, {height / 2}]"
    assert scored("point_in_box", '<point x="30" y="30" alt="cat">cat</point>', BOX) == 1
    assert scored("point_in_box", '<point x="90" y="30" alt="cat">cat</point>', BOX) == 0
    assert math.isnan(scored("point_in_box", '<point x="30" y="30" alt="cat">cat</point>', BOX, reading=None))


def test_two_points_or_an_unknown_size_are_invalid():
    two = '<point x="30" y="30" alt="a">a</point><point x="90" y="30" alt="a">a</point>'
    assert math.isnan(scored("point_in_box", two, BOX))
    assert math.isnan(scored("point_in_box", '<points x1="30" y1="30" x2="40" y2="50" alt="a">a</points>', BOX))
    assert math.isnan(scored("point_in_box", '<point x="30" y="30" alt="a">a</point> 7', BOX))
    with pytest.raises(InvalidAnswer, match="whose size is not known"):
        lenient_point("<loc0512><loc0256>", "pixel")


@pytest.mark.parametrize("text", ["45%", "45 %", "45 percent", "45 km", "45 km/h", "45"])
def test_units_behind_a_value_are_left_out(text):
    assert scored("chart_relaxed", text, "45") == 1
    assert scored("chart_relaxed", text.replace("45", "60"), "45") == 0


def test_a_percentage_may_still_be_a_fraction():
    assert scored("chart_relaxed", "45%", "0.45") == 1
    assert scored("chart_relaxed", "45%", "45", reading=None) == 0
    assert lenient_value("45 or 46") == "45 or 46"
    assert lenient_value("4.5 x 10") == "4.5 x 10"


def test_one_quotation_in_a_sentence_is_the_text():
    assert scored("ocr_ned", 'The sign reads "STOP".', "STOP") == 1
    assert scored("ocr_ned", "It says \u201cRock 'n' Roll\u201d", "Rock 'n' Roll") == 1
    assert scored("ocr_ned", '"STOP" or "GO"', "STOP") < 1
    assert scored("ocr_ned", 'The sign reads "STOP".', "STOP", reading=None) < 1
    assert lenient_quotation("no quotation") == "no quotation"


@given(st.text(alphabet="x1y2=:,.()[]{}\"'<>loc0459%km -\u201c\u201d", max_size=60))
def test_no_text_raises_or_is_right_by_accident(text):
    for name, answer in (
        ("box_iou", [11, 21, 61, 91]),
        ("point_in_box", [70, 70, 71, 71]),
        ("ocr_ned", "Rock 'n' Roll"),
    ):
        assert scored(name, text, answer) != 1
    scored("detection_f1", text, [{"box": BOX}])
    scored("chart_relaxed", text, "14")


def test_boxes_that_the_strict_parser_takes_are_unchanged():
    for text in ("[10, 20, 60, 90]", '[{"bbox_2d": [10, 20, 60, 90]}]', "<box>(10,20),(60,90)</box>", "none", ""):
        assert lenient_boxes(text) == text


def test_an_unknown_reading_is_refused():
    references = {"answer": BOX, **PIXELS, "reading": "loose"}
    output = BoxIoU().score([RewardInput("0", 0, "x", text="[1, 2, 3, 4]", references=references)])
    assert output.status["box_iou"] == [Status.ERROR] and "strict or lenient" in output.detail[0]["box_iou"]
    with pytest.raises(ValueError, match="reading"):
        AnswersConfig.model_validate({"reading": "loose"})
    with pytest.raises(RewardError, match="reading"):
        load("box_iou", reading="loose")
