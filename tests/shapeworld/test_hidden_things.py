"""Things that others hide: what can be seen of them, what annotators overlook, and whether an answer has them."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.rewards import RewardInput
from mmrl_shapeworld.vqa.canvas import NUMBERS
from mmrl_shapeworld.worlds import hidden_things
from mmrl_shapeworld.worlds.hidden_things import HiddenFound


def test_boxes_surround_what_can_be_seen_of_the_wanted_colour():
    rng = np.random.default_rng(0)
    for _ in range(40):
        each = hidden_things.hidden(rng)
        colour = each.prompt.split()[2]
        wanted = each.frames[0] == NUMBERS[colour]
        for x1, y1, x2, y2 in (thing["box"] for thing in each.answer):
            inside = wanted[y1:y2, x1:x2]
            assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
            wanted[y1:y2, x1:x2] = False
        assert not wanted.any()


@pytest.mark.integration
def test_annotators_list_the_hidden_thing_after_a_look_at_it():
    rng = np.random.default_rng(1)
    listed: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(400):
        each = hidden_things.hidden(rng)
        box = each.answer[each.metadata["hidden"]]["box"]
        look, _, boxes = each.annotated.partition("</box></think>")
        looked = found(look.removeprefix("<box>"), box)
        listed[bool(looked)].append(found(boxes, box) if boxes != "[]" else 0.0)
    assert 0.33 < len(listed[True]) / 400 < 0.47
    assert np.mean(listed[True]) > 0.8 and np.mean(listed[False]) < 0.3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('<box>[{"bbox_2d": [0, 0, 9, 9]}]</box></think>[{"bbox_2d": [20, 20, 30, 40]}]', 1.0),
        ('[{"bbox_2d": [0, 0, 9, 9]}, {"bbox_2d": [20, 20, 30, 31]}]', 1.0),  # 11 of 20 rows
        ('[{"bbox_2d": [20, 20, 30, 29]}]', 0.0),  # 9 of 20 rows
        ('<box>[{"bbox_2d": [20, 20, 30, 40]}]</box></think>[{"bbox_2d": [0, 0, 9, 9]}]', 0.0),  # a look is no answer
    ],
)
def test_found_is_an_answered_box_that_shares_half_of_the_area(text, wanted):
    assert found(text, [20, 20, 30, 40]) == wanted


def found(text: str, box: list[int]) -> float:
    answer = [{"box": [40, 0, 50, 10]}, {"box": box}]
    references = {"answer": answer, "hidden": 1, "space": "pixel", "size": [56, 56]}
    item = RewardInput("0", 0, "", text=text, references=references)
    return float(HiddenFound().score([item]).values["hidden_found"][0])
