"""Calculations whose prompts say how much each reward counts."""

from __future__ import annotations

import math

import pytest

from mmrl_shapeworld.reasoning import directed_calculations
from mmrl_shapeworld.reasoning.directed_calculations import directed_answers


def test_prompts_and_rewards_have_the_same_direction():
    found = directed_calculations.samples("remainders-directed")
    assert len(found) == 4096
    angles = set()
    for sample in found[:200]:
        right, short = (each.weight for each in sample.rewards)
        assert [each.name for each in sample.rewards] == ["numeric", "length"]
        assert sample.prompt.startswith(f"{100 * right:.0f}, {100 * short:.0f};")
        angles.add(round(math.degrees(math.atan2(short, right))))
    assert angles == {0, 15, 30, 45, 60, 75, 90}
    alike = directed_calculations.samples("remainders-undirected")
    assert [each.prompt for each in alike] == [each.prompt for each in found]
    assert len({tuple(choice.weight for choice in each.rewards) for each in alike}) == 1
    with pytest.raises(KeyError, match="choose one of remainders-directed"):
        directed_calculations.samples("remainders-none")


def test_the_prompt_is_all_that_differs_between_angles():
    tiny = {"on": "development", "warm": 1, "iterations": 1, "prompts": 32}
    right, short = (directed_answers(0, angle=angle, **tiny) for angle in (0, 90))
    assert len(right["right"]) == len(short["tokens"]) == 32 and right != short
    assert right == directed_answers(0, angle=0, **tiny)
