"""Points out of answers."""

import random

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.parsing.boxes import true_boxes
from mmrl.rewards.parsing.points import check_comparable, check_point, is_inside, parse_pair, parse_point

SIZE = (640, 480)


@pytest.mark.parametrize(
    "text",
    [
        "[320, 240]",
        "[[320, 240]]",
        "(320, 240)",
        "320, 240",
        "320 240",
        "320.0,240.00",
        "x=320, y=240",
        "x: 320 y: 240",
        "Click at (320, 240).",
        "<point>320 240</point>",
        "<|box_start|>(320,240)<|box_end|>",
        '{"x": 320, "y": 240}',
        '{"point_2d": [320, 240], "label": "the 2nd button"}',
        '{"coordinate": "(320, 240)"}',
        '[{"point": [320, 240]}]',
        "```json\n[320, 240]\n```",
    ],
)
def test_points_are_read_in_every_form(text):
    assert parse_point(text, "pixel", SIZE) == (320, 240)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the middle",
        "320",
        "[320]",
        "[320, 240, 7]",
        "[320, 240, 330, 250]",  # a box
        "(320, 240) or (100, 100)",
        "[[320, 240], [100, 100]]",
        "320, 240, 100",
        "3 points: (320, 240)",
        "(320, 240",
        "[320, 240",
        '{"point": [320, 240]',
        '{"point": [320, 240], "coordinate": [100, 100]}',
        '{"x": 320}',
        '{"label": "button"}',
        '{"point": [true, 240]}',
        '{"point": [[320, 240]]}',
        "[NaN, 240]",
        "[Infinity, 240]",
        "[1e999, 240]",
        "(-320, 240)",
        "(\u2212320, 240)",
        "(320, \u2212240)",
        "\u2013320, 240",
        '(100, 100) or {"x": 320, "y": 240}',
        '{"x": 320, "y": 240} or (100, 100)',
        "[320, 240] or 7",
        "\u202e[023, 042]",
        "(1000000000, 240)",
        "[1e9, 240]",
        "(3e2, 240)",
        ".320, 240",
        "x320, 240",
        "320, 240px",
        "３20, 240",  # noqa: RUF001
        "٣٢٠, 240",
        "32О, 240",  # noqa: RUF001
        "9" * 9000,
        "1, 2, " * 1500,
        "[" * 9000,
        "1, 2" + " " * 20_000,
    ],
)
def test_texts_without_a_single_point_in_the_image_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_point(text, "pixel", SIZE)


def test_points_may_exceed_the_image_by_one_percent():
    assert check_point((1010, -10), "norm_1000") == (1010, -10)
    assert check_point((1.01, 0), "norm_1") == (1.01, 0)
    for point, space in (((1011, 0), "norm_1000"), ((0, -0.011), "norm_1"), ((647, 0), "pixel")):
        with pytest.raises(InvalidAnswer, match="outside"):
            check_point(point, space, SIZE)
    assert check_point((647, 0), "pixel") == (647, 0)  # a picture of unknown size


def test_pairs_are_read_from_text_without_other_numbers():
    assert parse_pair("(-3.5, 7)") == (-3.5, 7)
    with pytest.raises(InvalidAnswer, match="more numbers"):
        parse_pair("1 2 3")


def test_500_random_points_are_inside_exactly_as_fractions():
    rng = random.Random(0)
    extents = {"pixel": SIZE, "norm_1": (1, 1), "norm_1000": (1000, 1000)}
    inside = 0
    for _ in range(500):
        input_space, space = rng.choice(list(extents)), rng.choice(list(extents))
        # corners in hundredths of the picture, so that points often fall on an edge
        left, right = sorted(rng.sample(range(101), 2))
        top, bottom = sorted(rng.sample(range(101), 2))
        x, y = (rng.choice([left, right, rng.randrange(101)]), rng.choice([top, bottom, rng.randrange(101)]))
        width, height = extents[input_space]
        box = [round(side / 100, 6) for side in (width * left, height * top, width * right, height * bottom)]
        width, height = extents[space]
        point = (round(width * x / 100, 6), round(height * y / 100, 6))
        truth = true_boxes({"answer": box, "space": input_space, "size": SIZE}, space)
        exact = left <= x <= right and top <= y <= bottom
        assert is_inside(point, truth) == exact, (point, space, box, input_space)
        inside += exact
    assert 100 < inside < 400


def test_pixel_to_fraction_conversion_needs_the_image_size():
    with pytest.raises(ScoringFailed, match="size"):
        check_comparable(true_boxes({"answer": [1, 2, 3, 4], "space": "pixel"}, "norm_1"))
    check_comparable(true_boxes({"answer": [1, 2, 3, 4], "space": "norm_1000"}, "norm_1"))
    check_comparable(true_boxes({"answer": [1, 2, 3, 4], "space": "pixel"}))
