"""Scenes to describe and to draw again: captions, a terse annotator, attributes and intersections over unions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from mmrl.data.media.decode import load_image
from mmrl.rewards import RewardInput
from mmrl_shapeworld.captions import Caption, Clause, related
from mmrl_shapeworld.scenes import Scene, Thing, draw
from mmrl_shapeworld.worlds import redrawn_scenes
from mmrl_shapeworld.worlds.redrawn_scenes import (
    SceneReconstruction,
    TrueAttributes,
    named_attributes,
    pixels_iou,
    scene_caption,
    terse_caption,
    things_iou,
)

RED, BLUE = Thing("red", "circle", 0.25, 0.5, 0.3), Thing("blue", "square", 0.75, 0.5, 0.3)
PAIR = Scene((RED, BLUE))
TRUTH = Caption((Clause(1, "red", "circle"), Clause(1, "blue", "square")), "left of")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a red circle left of a blue square", (5, 0)),
        ("a blue square right of a red circle", (5, 0)),
        ("a red circle right of a blue square", (4, 1)),
        ("a red circle and a blue square", (4, 0)),
        ("a red circle", (2, 0)),
        ("a small red circle", (2, 1)),
        ("two red circles", (2, 1)),
        ("a red square left of a blue square", (3, 2)),  # a relation of a thing that is not there
        ("a red circle and a red circle", (2, 2)),  # the second stands for the other thing
        ("a red circle and a blue square and a green triangle", (4, 2)),
        ("red", (0, 0)),
        ("", (0, 0)),
        ("A RED CIRCLE", (2, 0)),
    ],
)
def test_true_and_false_attributes_by_hand(text, expected):
    assert named_attributes(text, TRUTH, PAIR) == expected


def test_sizes_and_numbers_count_where_the_scene_has_them():
    small = Caption((Clause(1, "red", "circle", "small"),))
    assert named_attributes("a small red circle", small, Scene((RED,))) == (3, 0)
    assert named_attributes("a large red circle", small, Scene((RED,))) == (2, 1)
    three = Caption((Clause(3, "red", "circle"),))
    assert named_attributes("three red circles", three, Scene((RED,) * 3)) == (3, 0)
    assert named_attributes("a red circle", three, Scene((RED,) * 3)) == (2, 0)
    item = RewardInput(
        "a", 0, "", text="two red circles", references={"answer": three.as_dict(), "things": [vars(RED)]}
    )
    found = TrueAttributes().score([item]).values
    assert found["true_attributes"][0] == 2 and found["false_attributes"][0] == 1


def test_the_union_of_things_counts_each_once():
    picture = draw(PAIR)
    assert things_iou(picture, picture) == 1.0
    assert things_iou(picture, draw(Scene((RED,)))) == 0.5
    moved = draw(Scene((Thing("blue", "square", 0.25, 0.25, 0.4), Thing("red", "circle", 0.7, 0.7, 0.35))))
    assert things_iou(picture, moved) == 1.0
    assert things_iou(draw(Scene((RED,))), draw(Scene((BLUE,)))) == 0.0
    assert things_iou(Image.new("RGB", (32, 32), (245, 245, 245)), picture) == 0.0


def test_the_union_of_pixels_knows_places_and_sizes():
    square = Thing("red", "square", 0.25, 0.25, 0.5)
    whole = draw(Scene((square,)))
    assert pixels_iou(whole, whole) == 1.0
    half = draw(Scene((Thing("red", "square", 0.25, 0.25, 0.25),)))
    assert pixels_iou(whole, half) == pytest.approx((8 * 8) / (16 * 16), abs=0.05)
    assert pixels_iou(whole, draw(Scene((Thing("blue", "square", 0.25, 0.25, 0.5),)))) == 0.0
    assert pixels_iou(draw(Scene((square,)), 64), whole) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_the_share_of_things_is_mixed_into_the_similarity():
    sample = redrawn_scenes.samples("described-development")[0]
    other = redrawn_scenes.samples("described-development")[1]
    pictures = [load_image(each.metadata["picture"], "x") for each in (sample, other)]
    rows = [RewardInput(str(n), 0, "", image=each, references={"picture": sample.metadata["picture"]})
            for n, each in enumerate(pictures)]  # fmt: skip
    plain, mixed = (SceneReconstruction(things=share, device="cpu").score(rows).values for share in (0.0, 0.25))
    assert mixed["scene_reconstruction"].tolist() == pytest.approx(
        (0.75 * plain["redrawn_clip"] + 0.25 * plain["redrawn_iou"]).tolist(), abs=1e-6
    )
    assert plain["scene_reconstruction"].tolist() == plain["redrawn_clip"].tolist()
    assert mixed["scene_reconstruction"][0] == pytest.approx(1.0, abs=1e-5)
    assert mixed["scene_reconstruction"][1] < 0.99


@pytest.mark.slow
def test_splits_say_what_their_pictures_show():
    train = redrawn_scenes.samples("described-train")
    assert len(train) == 1200
    for sample in train[:40]:
        caption = Caption.from_dict(sample.answer)
        scene = Scene(tuple(Thing(**each) for each in sample.metadata["things"]))
        assert caption.holds_for(scene) and named_attributes(str(caption), caption, scene)[1] == 0
        assert load_image(sample.metadata["picture"], "x").tobytes() == draw(scene).tobytes()
        assert load_image(sample.images[0], "x").size == (56, 56)
    pictures = [{sample.images for sample in redrawn_scenes.samples(name)} for name in redrawn_scenes.NAMES]
    assert all(not one & other for one, other in combinations(pictures, 2))
    assert all(sample.demonstration is None for sample in redrawn_scenes.samples("described-validation"))


def test_the_annotator_leaves_out_more_than_it_gets_wrong():
    rng = np.random.default_rng(5)
    true, false, full = [], [], []
    for _ in range(600):
        caption = scene_caption(rng)
        scene = Scene(tuple(Thing(c.colour, c.shape, 0.5, 0.5, 0.2) for c in caption.clauses for _ in range(c.count)))
        counts = named_attributes(str(terse_caption(caption, rng)), caption, scene)
        whole = named_attributes(str(caption), caption, scene)
        relation = caption.relation is not None and not related(*scene.things, caption.relation)
        true.append(counts[0])
        false.append(counts[1])
        full.append(whole[0] + relation)
    assert np.mean(true) < 0.8 * np.mean(full) and np.mean(false) < 0.25
