"""Scenes, their captions, and what must hold between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl_shapeworld.captions import (
    HELDOUT_KINDS,
    KINDS,
    RELATIONS,
    Caption,
    Clause,
    relation_holds,
    sample_caption,
    sample_scene,
)
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, Scene, Thing, draw, pixel_boxes, thing_mask
from mmrl_shapeworld.splits import SPLITS, captions, contains_heldout_kind, samples


@given(st.integers(0, 10_000))
def test_sampled_scenes_satisfy_their_caption_without_overlap(seed):
    rng = np.random.default_rng(seed)
    caption = sample_caption(rng, KINDS)
    scene = sample_scene(caption, rng)
    assert caption.holds_for(scene)
    covered = sum(thing_mask(thing, 64).astype(int) for thing in scene.things)
    assert covered.max() == 1
    assert Caption.from_dict(caption.as_dict()) == caption


@pytest.mark.parametrize("pixels", [32, 64, 128])
def test_boxes_and_masks_match_the_image(pixels):
    scene = Scene((Thing("red", "circle", 0.3, 0.3, 0.3), Thing("blue", "triangle", 0.7, 0.65, 0.4)))
    picture = np.asarray(draw(scene, pixels))
    for thing, (x1, y1, x2, y2) in zip(scene.things, pixel_boxes(scene, pixels), strict=True):
        rows, columns = np.nonzero((picture == COLOURS[thing.colour]).all(-1))
        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (x1, y1, x2, y2)
        assert np.array_equal(thing_mask(thing, pixels), (picture == COLOURS[thing.colour]).all(-1))
        assert abs((x1 + x2) / 2 / pixels - thing.x) <= 1.01 / pixels
    corner = picture[0, 0]
    assert tuple(corner) == BACKGROUND


def test_areas_are_those_of_the_shapes():
    """At 128 pixels: a disc fills pi/4 of its box, a triangle half, a square all."""
    for shape, share in (("circle", np.pi / 4), ("triangle", 0.5), ("square", 1.0)):
        mask = thing_mask(Thing("red", shape, 0.5, 0.5, 0.8), 128)
        side = round(0.8 * 128)
        assert mask.sum() / side**2 == pytest.approx(share, abs=0.02)


def test_captions_are_english_phrases():
    assert str(Caption((Clause(1, "red", "circle", "large"),))) == "a large red circle"
    assert str(Caption((Clause(3, "blue", "square"),))) == "three blue squares"
    pair = (Clause(1, "red", "circle"), Clause(1, "blue", "square"))
    assert str(Caption(pair)) == "a red circle and a blue square"
    assert str(Caption(pair, "left of")) == "a red circle left of a blue square"


@given(st.sampled_from(RELATIONS), st.floats(-1, 1), st.floats(-1, 1))
def test_opposite_relations_exclude_each_other(relation, dx, dy):
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}[relation]
    assert not (relation_holds(dx, dy, relation) and relation_holds(dx, dy, opposite))
    assert relation_holds(dx, dy, relation) == relation_holds(-dx, -dy, opposite)


@pytest.mark.integration
def test_splits_are_fixed_and_exclude_heldout_kinds():
    assert captions("train") == captions("train")
    assert not any(
        contains_heldout_kind(caption)
        for split in ("train", "development", "validation")
        for caption in captions(split)
    )
    assert all(contains_heldout_kind(caption) for caption in captions("heldout"))
    assert {len(captions(split)) for split in SPLITS} == {4096, 768, 384}
    assert {sample.source for sample in samples("validation")} == {"single", "count", "pair", "relation"}
    assert len({sample.id for split in SPLITS for sample in samples(split)}) == 4096 + 2 * 768 + 384
    named = {(c.colour, c.shape) for caption in captions("heldout") for c in caption.clauses}
    assert set(HELDOUT_KINDS) < named


def test_the_second_half_of_a_split_is_its_last_samples():
    whole, half = samples("badges-validation"), samples("badges-validation-second")
    assert [sample.id for sample in half] == [sample.id for sample in whole[256:]] and len(whole) == 512
    with pytest.raises(KeyError, match="badges-nowhere"):
        samples("badges-nowhere-second")


def test_unknown_splits_raise_with_the_known_ones():
    with pytest.raises(KeyError, match="some are train, development, validation, heldout"):
        captions("test")
