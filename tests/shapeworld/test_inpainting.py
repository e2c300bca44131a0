"""Holes against the renderer: right fillings score 1, and what a lax checker would take does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl_shapeworld.inpainting import GRID, Hole, judge_hole, sample_hole
from mmrl_shapeworld.scenes import Scene, Thing, draw

OLD, OTHER = Thing("red", "circle", 0.28, 0.28, 0.36), Thing("yellow", "triangle", 0.74, 0.72, 0.34)
HOLE = Hole(Scene((OLD, OTHER)), (0, 0, 16, 16), "green", "square")
NEW = Thing("green", "square", 0.26, 0.26, 0.34)


def drawn(*things: Thing, pixels: int = 32) -> Image.Image:
    return draw(Scene(things), pixels)


def test_prompt_names_the_missing_thing():
    assert str(HOLE) == "a green square"
    assert Hole.from_dict(HOLE.as_dict()) == HOLE


def test_holes_align_with_latent_pixels_and_cover_one_thing():
    rng = np.random.default_rng(3)
    for hole, filled in [sample_hole(rng) for _ in range(100)]:
        assert all(edge % GRID == 0 and 0 <= edge <= 32 for edge in hole.box)
        before, after = np.asarray(draw(hole.source)), np.asarray(draw(filled))
        assert not ((before != after).any(-1) & ~hole.mask()).any()
        assert hole.mask(64).sum() == 4 * hole.mask().sum()


@pytest.mark.parametrize("pixels", [32, 64])
def test_rendered_filling_is_strictly_correct(pixels):
    rng = np.random.default_rng(pixels)
    for hole, filled in [sample_hole(rng) for _ in range(60)]:
        verdict = judge_hole(draw(filled, pixels), hole)
        assert verdict.strict and verdict.score == pytest.approx(1.0)
        untouched = judge_hole(draw(hole.source, pixels), hole)
        kind = (hole.source.things[0].colour, hole.source.things[0].shape)
        assert untouched.strict == (kind == (hole.colour, hole.shape))


def test_partial_credit_is_ordered():
    """Empty < the right thing twice over < its colour alone < right, and the rest repainted < right."""
    scores = [
        judge_hole(picture, HOLE).score
        for picture in (
            drawn(OTHER),
            drawn(replace(NEW, shape="circle"), OTHER),
            drawn(replace(NEW, side=0.2, x=0.12, y=0.12), replace(NEW, side=0.2, x=0.38, y=0.38), OTHER),
            drawn(NEW, OTHER),
        )
    ]
    assert scores == sorted(scores) and len(set(scores)) == 4
    assert scores[0] == 0.0 and scores[-1] == 1.0


@pytest.mark.parametrize(
    "picture",
    [
        drawn(NEW),
        drawn(NEW, replace(OTHER, colour="blue")),
        drawn(NEW, OTHER, Thing("blue", "circle", 0.76, 0.22, 0.28)),
        drawn(replace(NEW, x=0.74, y=0.24), OTHER),
    ],
    ids=["the rest is gone", "the rest is repainted", "one thing more", "beside the hole"],
)
def test_changes_outside_the_hole_are_not_strict(picture):
    verdict = judge_hole(picture, HOLE)
    assert not verdict.strict and verdict.score < 0.7
