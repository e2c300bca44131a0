"""Edits against the renderer: right ones score 1, and what a lax checker would take does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl_shapeworld.editing import Edit, judge_edit, sample_edit
from mmrl_shapeworld.scenes import COLOURS, Scene, Thing, draw

CIRCLE, SQUARE = Thing("red", "circle", 0.28, 0.28, 0.36), Thing("green", "square", 0.72, 0.7, 0.34)
EDIT = Edit(Scene((CIRCLE, SQUARE)), 0, "blue")


def drawn(*things: Thing, pixels: int = 32) -> Image.Image:
    return draw(Scene(things), pixels)


def test_instruction_names_the_thing_and_its_target():
    assert str(EDIT) == "make the red circle blue"
    assert str(replace(EDIT, becomes="triangle")) == "make the red circle a triangle"
    assert Edit.from_dict(EDIT.as_dict()) == EDIT


@pytest.mark.integration
@pytest.mark.parametrize("pixels", [32, 64])
def test_rendered_target_is_strictly_correct_and_the_source_is_not(pixels):
    rng = np.random.default_rng(pixels)
    for edit in [sample_edit(rng) for _ in range(60)]:
        right, still = judge_edit(draw(edit.target, pixels), edit), judge_edit(draw(edit.source, pixels), edit)
        assert right.strict and right.score == pytest.approx(1.0)
        assert not still.strict and still.score == pytest.approx(0.4) and still.kept == 1.0


def test_partial_credit_is_ordered():
    """Nothing there < untouched < the other thing reshaped too < the named thing reshaped too < right."""
    blue = replace(CIRCLE, colour="blue")
    scores = [
        judge_edit(picture, EDIT).score
        for picture in (
            drawn(),
            drawn(CIRCLE, SQUARE),
            drawn(blue, replace(SQUARE, shape="triangle")),
            drawn(replace(blue, shape="square"), SQUARE),
            drawn(blue, SQUARE),
        )
    ]
    assert scores == sorted(scores) and len(set(scores)) == 5
    assert scores[0] == 0.0 and scores[-1] == 1.0


def tricks():
    """Ways of pleasing a lax checker; none makes just the circle blue."""
    blue = replace(CIRCLE, colour="blue")
    yield "everything blue", drawn(blue, replace(SQUARE, colour="blue"))
    yield "the other thing is gone", drawn(blue)
    yield "one thing more", drawn(blue, SQUARE, Thing("yellow", "square", 0.78, 0.2, 0.26))
    yield "moved away", drawn(replace(blue, x=0.25, y=0.72), SQUARE)
    yield "grown", drawn(replace(blue, side=0.54, x=0.32, y=0.32), SQUARE)
    halves = np.array(drawn(CIRCLE, SQUARE))
    upper = (halves == COLOURS["red"]).all(-1) & (np.arange(32) < 9)[:, None]
    halves[upper] = COLOURS["blue"]
    yield "half blue, half red", Image.fromarray(halves)
    smudged = np.array(drawn(blue, SQUARE))
    smudged[20:30, 2:12] = (140, 140, 140)
    yield "a smudge beside it", Image.fromarray(smudged)


@pytest.mark.parametrize("name, picture", list(tricks()), ids=lambda value: value if isinstance(value, str) else "")
def test_adversarial_images_are_not_strict_and_lose_score(name, picture):
    verdict = judge_edit(picture, EDIT)
    assert not verdict.strict and verdict.score < 0.85
