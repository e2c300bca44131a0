"""Regions that are proposed for a closer look: what is found in them, and how well they are chosen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import load
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.rules.region_proposals import covered_share, found_things

THINGS = [[10, 10, 14, 14], [20, 10, 24, 14], [80, 80, 84, 84], [90, 20, 94, 24]]
"""Four things of 4 x 4 in a picture of 100 x 100."""


def scored(boxes, reward=None, **references):
    whole = {"answer": [{"box": box} for box in THINGS], "space": "pixel", "size": [100, 100], **references}
    text = json.dumps([{"bbox_2d": box} for box in boxes])
    output = (reward or load("region_proposals")).score([RewardInput("a", "a", "Look.", text=text, references=whole)])
    return {name: float(values[0]) for name, values in output.values.items()}, output


def test_the_parts_by_hand():
    # The first region shows two things; the second lies over it (IoU 0.81) and shows none whole; the third one thing.
    values, _ = scored([[8, 8, 28, 28], [9, 9, 29, 29], [76, 76, 96, 96]])
    assert values["recall"] == pytest.approx(3 / 4)
    assert values["valid"] == pytest.approx(2 / 3)
    assert values["coverage"] == pytest.approx(3 / 4)
    assert values["region_proposals"] == pytest.approx(0.6 * 0.75 + 0.2 * 2 / 3 + 0.2 * 0.75)


def test_a_region_that_is_too_large_covers_and_shows_nothing():
    values, _ = scored([[0, 0, 100, 100]])
    assert (values["recall"], values["valid"], values["coverage"]) == (0.0, 0.0, 1.0)
    assert scored([[0, 0, 50, 50]])[0]["recall"] == 0.5  # exactly two times enlarged
    assert scored([[0, 0, 51, 50]])[0]["recall"] == 0.0


def test_regions_after_the_first_ones_count_for_nothing():
    spam = [[0, 0, 1, 1]] * 3 + [box for box in THINGS]
    assert scored(spam)[0]["recall"] == 0.0
    assert scored(spam, load("region_proposals", most=7))[0]["recall"] == 1.0


def test_a_thing_at_the_edge_of_a_region_is_covered_in_part_and_not_found():
    values, _ = scored([[10, 10, 12, 30]])
    assert values["recall"] == 0.0 and values["coverage"] == pytest.approx(8 / 64)
    assert scored([[10, 10, 12, 30], [11, 10, 14, 14]])[0]["coverage"] == pytest.approx(16 / 64)


def test_answers_in_thousandths_are_the_same():
    pixels = scored([[8, 8, 28, 28], [76, 76, 96, 96]])[0]
    other = scored([[80, 80, 280, 280], [760, 760, 960, 960]], load("region_proposals", space="norm_1000"))[0]
    assert other == pytest.approx(pixels)
    thousandths = {"answer": [{"box": [10 * edge for edge in box]} for box in THINGS], "space": "norm_1000"}
    for size in ([100, 100], None):
        both = scored([[80, 80, 280, 280], [760, 760, 960, 960]], size=size, **thousandths)[0]
        assert both == pytest.approx(pixels)


@pytest.mark.parametrize("text", ["", "Somewhere.", "[[1, 2, 3]]", "[[5, 5, 1, 1]]"])
def test_an_answer_without_boxes_is_invalid(text):
    item = RewardInput(
        "a", "a", "Look.", text=text, references={"answer": THINGS, "space": "pixel", "size": [100, 100]}
    )
    output = load("region_proposals").score([item])
    assert output.values["region_proposals"][0] == 0.0 and output.status["region_proposals"] == ["invalid"]


def test_a_sample_without_things_cannot_be_scored():
    assert np.isnan(scored([[0, 0, 1, 1]], answer=[])[1].values["region_proposals"][0])
    assert np.isnan(scored([[0, 0, 1, 1]], size=None)[1].values["region_proposals"][0])


@pytest.mark.parametrize(
    "settings",
    [{"most": 0}, {"zoom": 0.5}, {"smallest": 0.5}, {"overlap": 2}, {"weights": {}}, {"weights": {"recall": -1}},
     {"weights": {"iou": 1}}, {"weights": {"recall": 0}}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_errors(settings):
    with pytest.raises(RewardError, match="region_proposals"):
        load("region_proposals", **settings)


BOX = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 10), st.integers(1, 10)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)


@given(regions=st.lists(BOX, min_size=1, max_size=5), things=st.lists(BOX, min_size=1, max_size=4))
def test_coverage_is_the_share_of_pixels(regions, things):
    """Compare with counting pixels."""
    covered = np.zeros((31, 31), bool)
    for x1, y1, x2, y2 in regions:
        covered[y1:y2, x1:x2] = True
    pixels = sum(covered[y1:y2, x1:x2].sum() for x1, y1, x2, y2 in things)
    area = sum((x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in things)
    found = covered_share(np.array(regions, float), np.array(things, float))
    assert found == pytest.approx(pixels / area)


@given(regions=st.lists(BOX, min_size=2, max_size=5), things=st.lists(BOX, min_size=1, max_size=4), data=st.data())
def test_order_does_not_matter_and_more_regions_show_no_less(regions, things, data):
    shuffled = data.draw(st.permutations(regions))
    truth = np.array(things, float)
    found = found_things(np.array(regions, float), truth, 8)
    assert np.array_equal(found, found_things(np.array(shuffled, float), truth, 8))
    assert (found >= found_things(np.array(regions[:-1], float), truth, 8)).all()
