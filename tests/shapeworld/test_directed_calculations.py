"""Calculations whose prompts say how much each reward counts."""

from __future__ import annotations

import math

import pytest

from mmrl_shapeworld.reasoning import directed_calculations
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.directed_calculations import directed, directed_answers


@pytest.mark.integration
def test_prompts_and_rewards_have_the_same_direction():
    found = directed_calculations.samples("sums-directed")
    assert len(found) == 4096
    angles = set()
    for sample, calculation in zip(found[:200], calculations("sums-train"), strict=False):
        right, chain, short = (each.weight for each in sample.rewards)
        assert [each.name for each in sample.rewards] == ["numeric", "path_coverage", "length"]
        assert right == chain
        angle = round(math.degrees(math.atan2(short, math.hypot(right, chain))))
        assert sample.prompt == str(calculation).removesuffix("=") + f" {angle // 15}"
        angles.add(angle)
    assert angles == {0, 15, 30, 45, 60, 75, 90}
    alike = directed_calculations.samples("sums-undirected")
    assert [each.prompt for each in alike] == [each.prompt for each in found]
    assert len({tuple(choice.weight for choice in each.rewards) for each in alike}) == 1
    with pytest.raises(KeyError, match="choose one of sums-directed"):
        directed_calculations.samples("sums-none")


def test_an_angle_becomes_the_nearest_direction():
    sample = directed_calculations.samples("sums-directed")[0]
    plain = sample.prompt[:-2] + "="
    right, near = (directed(type(sample)(id="0", prompt=plain), angle) for angle in (30, 33))
    assert right == near and right.prompt.endswith(" 2")
    assert [each.weight for each in right.rewards] == pytest.approx([math.sqrt(3 / 8), math.sqrt(3 / 8), 0.5])


@pytest.mark.slow
def test_the_prompt_is_all_that_differs_between_angles():
    tiny = {"on": "development", "warm": 1, "rounds": 1, "groups": 32, "group_size": 2, "epochs": 1, "prompts": 32}
    right, short = (directed_answers(0, angle=angle, **tiny) for angle in (0, 90))
    assert len(right["right"]) == len(short["tokens"]) == 32 and right != short
    assert right == directed_answers(0, angle=0, **tiny)
