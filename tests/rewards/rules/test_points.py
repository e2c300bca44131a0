"""Points inside and outside of boxes."""

import numpy as np
import pytest

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.gui import PointInBox

from .single_answer import ask, outcome, value

BOX = [100, 200, 300, 400]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("(200, 300)", 1),
        ("(100, 200)", 1),
        ("(300, 400)", 1),
        ("<answer>[300, 200]</answer>", 1),
        ("<think>(0, 0)? no</think>(200, 300)", 1),
        ("(99.999999, 300)", 0),
        ("(200, 400.000001)", 0),
        ("(0, 0)", 0),
    ],
)
def test_box_edges_are_inside(text, score):
    assert value(PointInBox(), text, BOX, space="norm_1000") == score


def test_500_random_points_equal_numpy():
    rng = np.random.default_rng(0)
    corners = np.sort(rng.integers(0, 1001, (500, 2, 2)), axis=1)
    corners[:, 1] += corners[:, 0] == corners[:, 1]
    corners = np.minimum(corners, 1000)
    keep = (corners[:, 0] < corners[:, 1]).all(-1)
    points = rng.integers(0, 1001, (500, 2))
    reward = PointInBox()
    items = [
        ask(f"({x}, {y})", box.reshape(-1).tolist(), space="norm_1000")
        for (x, y), box in zip(points, corners, strict=True)
    ]
    output = reward.score([item for item, kept in zip(items, keep, strict=True) if kept])
    expected = ((corners[:, 0] <= points) & (points <= corners[:, 1])).all(-1)[keep]
    np.testing.assert_array_equal(output.values["point_in_box"], expected)
    assert keep.sum() > 490 and 20 < expected.sum() < 200


def test_answers_and_references_may_use_different_spaces():
    size = [640, 480]
    assert value(PointInBox("norm_1000"), "(170, 360)", [108.8, 172.8, 200, 200], space="pixel", size=size) == 1
    assert value(PointInBox("norm_1000"), "(169, 360)", [108.8, 172.8, 200, 200], space="pixel", size=size) == 0
    assert value(PointInBox("pixel"), "(108.8, 172.8)", [0.17, 0.36, 0.5, 0.5], space="norm_1", size=size) == 1
    assert outcome(PointInBox("pixel"), "(1, 2)", BOX, space="norm_1000")[1] is Status.ERROR  # of unknown size


def test_point_in_any_of_several_boxes_is_right():
    boxes = [{"box": BOX, "label": "OK"}, {"box": [500, 500, 600, 600], "label": "Yes"}]
    assert value(PointInBox(), "(550, 550)", boxes, space="norm_1000") == 1
    assert value(PointInBox(), "(450, 450)", boxes, space="norm_1000") == 0


def test_malformed_references_are_scorer_failures_and_answers_invalid():
    for answer in ([], "x", [300, 400, 100, 200], [1, 2]):
        assert outcome(PointInBox(), "(200, 300)", answer, space="norm_1000")[1] is Status.ERROR
    assert outcome(PointInBox(), "(200, 300)", BOX)[1] is Status.ERROR  # no space
    assert outcome(PointInBox(), "(200, 300", BOX, space="norm_1000") == (0, Status.INVALID)


def test_unknown_spaces_raise():
    with pytest.raises(RewardError, match="norm_1000"):
        PointInBox("percent")
