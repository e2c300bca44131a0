"""Clips against the renderer: right ones score 1, and what a lax checker would take does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmrl_shapeworld.motion import DIRECTIONS, Motion, Move, draw_clip, judge_clip, sample_clip, sample_motion
from mmrl_shapeworld.scenes import Scene, Thing, draw

LEFT = Motion((Move("red", "circle", "left"),))
CIRCLE = Thing("red", "circle", 0.7, 0.5, 0.36)


def clip(*xs: float, **changes) -> list:
    """The circle at these places from left to right."""
    return draw_clip([Scene((replace(CIRCLE, x=x, **changes),)) for x in xs])


GOOD = (0.7, 0.62, 0.54, 0.46, 0.38)


def test_prompt_names_things_and_directions():
    both = Motion((*LEFT.moves, Move("blue", "square", "up")))
    assert str(both) == "a red circle moves left and a blue square moves up"
    assert Motion.from_dict(both.as_dict()) == both
    assert (LEFT.form, both.form) == ("one", "two")


@pytest.mark.integration
@pytest.mark.parametrize("pixels", [32, 64])
def test_rendered_clip_is_strictly_correct_and_reversed_is_not(pixels):
    rng = np.random.default_rng(pixels)
    for motion in [sample_motion(rng) for _ in range(25)]:
        frames = draw_clip(sample_clip(motion, rng), pixels)
        right, wrong, still = (judge_clip(each, motion) for each in (frames, frames[::-1], frames[:1] * 5))
        assert right.strict and right.score == pytest.approx(1.0)
        assert not wrong.strict and wrong.score == pytest.approx(0.5)
        assert not still.strict and still.score == pytest.approx(0.5)


def test_only_the_requested_direction_is_strictly_correct():
    for direction in DIRECTIONS:
        motion = Motion((replace(LEFT.moves[0], direction=direction),))
        assert judge_clip(clip(*GOOD), motion).strict == (direction == "left")


def tricks():
    """Ways of pleasing a lax checker; none is a red circle that moves left."""
    good = clip(*GOOD)
    yield "it is gone for a frame", [*good[:2], draw(Scene(())), *good[3:]]
    yield "it turns blue on the way", [*good[:3], *clip(*GOOD[3:], colour="blue")]
    yield "it turns into a square", [*good[:3], *clip(*GOOD[3:], shape="square")]
    yield "it jumps back and forth", clip(0.7, 0.5, 0.66, 0.44, 0.5)
    yield "it hardly moves", clip(0.7, 0.68, 0.66, 0.64, 0.62)
    sides = zip(GOOD, (0.3, 0.36, 0.42, 0.5, 0.56), strict=True)
    grown = [Scene((replace(CIRCLE, x=x, side=side),)) for x, side in sides]
    yield "it grows", draw_clip(grown)
    slanted = [Scene((replace(CIRCLE, x=x, y=0.3 + 0.7 - x),)) for x in GOOD]
    yield "it moves aslant", draw_clip(slanted)
    find_unsupported_leaf = Thing("blue", "square", 0.2, 0.15, 0.26)
    yield (
        "something else is there",
        draw_clip([Scene((replace(CIRCLE, x=x, y=0.7), find_unsupported_leaf)) for x in GOOD]),
    )


@pytest.mark.parametrize("name, frames", list(tricks()), ids=lambda value: value if isinstance(value, str) else "")
def test_adversarial_clips_are_not_strict_and_lose_score(name, frames):
    verdict = judge_clip(frames, LEFT)
    assert not verdict.strict and verdict.score < 0.95
