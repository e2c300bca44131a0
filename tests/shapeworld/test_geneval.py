"""GenEval on shapes: found and judged by rules."""

import numpy as np
import pytest

from mmrl.rewards import RewardInput, Status, load
from mmrl_shapeworld.scenes import Scene, Thing, draw

RED_LEFT_OF_BLUE = Scene((Thing("red", "circle", 0.25, 0.5, 0.3), Thing("blue", "square", 0.75, 0.5, 0.3)))


def judged(scene, include, **others):
    item = RewardInput(id="a", group=0, prompt="", image=draw(scene, 64), references={"include": include, **others})
    output = load("shapeworld_geneval").score([item])
    assert output.status["shapeworld_geneval"][0] is Status.OK
    assert output.values["shapeworld_geneval/strict"][0] == output.values["shapeworld_geneval"][0]
    return float(output.values["shapeworld_geneval"][0]), float(output.values["shapeworld_geneval/graded"][0])


CIRCLE, SQUARE = {"class": "circle", "count": 1}, {"class": "square", "count": 1}


@pytest.mark.parametrize(
    ("include", "strict", "graded"),
    [
        ([CIRCLE], 1, 1),
        ([CIRCLE | {"color": "red"}, SQUARE | {"color": "blue"}], 1, 1),
        ([CIRCLE | {"color": "blue"}], 0, 0.5),
        ([CIRCLE | {"count": 2}], 0, 0.5),
        ([{"class": "triangle", "count": 1}], 0, 0),
        ([SQUARE, CIRCLE | {"position": ["left of", 0]}], 1, 1),
        ([SQUARE, CIRCLE | {"position": ["right of", 0]}], 0, 2 / 3),
        ([SQUARE, CIRCLE | {"position": ["above", 0]}], 0, 2 / 3),
    ],
)
def test_geneval_checks_shapes_counts_colours_and_positions(include, strict, graded):
    assert judged(RED_LEFT_OF_BLUE, include) == (strict, pytest.approx(graded))


def test_extra_objects_fail_only_if_excluded():
    exclude = [{"class": "circle", "count": 1}]
    assert judged(RED_LEFT_OF_BLUE, [SQUARE], exclude=exclude)[0] == 0
    assert judged(RED_LEFT_OF_BLUE, [SQUARE], exclude=[{"class": "circle", "count": 2}], tag="counting")[0] == 1


def test_unknown_classes_are_scorer_failures():
    item = RewardInput(
        id="a", group=0, prompt="", image=draw(RED_LEFT_OF_BLUE), references={"include": [{"class": "dog", "count": 1}]}
    )
    output = load("shapeworld_geneval").score([item])
    assert output.status["shapeworld_geneval"][0] is Status.ERROR and np.isnan(output.values["shapeworld_geneval"][0])
    assert "ShapeWorld has no dog" in str(output.detail[0])
