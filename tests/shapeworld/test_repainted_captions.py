"""Captions that may be painted blue: disjoint splits, demonstrations of all three sorts, and rewards that disagree."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld import repainted_captions
from mmrl_shapeworld.captions import Caption, sample_scene
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.repainted_captions import BLUE, PAINTED, SPLITS, TIMES, ColourShare, colour_share, demonstrated
from mmrl_shapeworld.scenes import COLOURS, draw
from mmrl_shapeworld.splits import contains_heldout_kind, samples


def test_splits_share_no_caption_and_name_two_shapes_and_no_blue():
    found = {split: {sample.prompt for sample in samples(split)} for split in SPLITS}
    assert {split: len(each) for split, each in found.items()} == SPLITS
    assert len(set().union(*found.values())) == sum(SPLITS.values())
    for split in SPLITS:
        for sample in samples(split):
            caption = Caption.from_dict(sample.answer)
            first, second = caption.clauses
            assert sample.prompt == str(caption) and sample.source == caption.form and BLUE not in sample.prompt
            assert first.shape != second.shape and not contains_heldout_kind(caption)
    with pytest.raises(KeyError):
        repainted_captions.samples("repainted-unknown")


def test_demonstrations_are_of_training_and_paint_no_thing_one_or_both():
    taught = samples("repainted-taught")
    assert len(taught) == TIMES * SPLITS["repainted-train"] == len({sample.id for sample in taught})
    counts = Counter(sample.demonstration.count(BLUE) for sample in taught)
    assert [counts[number] / len(taught) for number in range(3)] == pytest.approx(PAINTED, abs=0.06)
    for sample in taught:
        words = zip(sample.prompt.split(), sample.demonstration.split(), strict=True)
        assert all(after in (before, BLUE) for before, after in words)


def test_the_more_is_blue_the_less_of_the_caption_is_there():
    """The two rewards, of drawn scenes: no order of theirs agrees."""
    rng, facts, blue = np.random.default_rng(0), np.zeros(3), np.zeros(3)
    for sample in samples("repainted-train")[:20]:
        caption = Caption.from_dict(sample.answer)
        for number in range(3):
            clauses = [replace(each, colour=BLUE) if n < number else each for n, each in enumerate(caption.clauses)]
            picture = draw(sample_scene(Caption(tuple(clauses), caption.relation), rng), 64)
            facts[number] += judge(picture, caption).score / 20
            blue[number] += colour_share(picture, BLUE) / 20
    assert facts[0] == pytest.approx(1.0) and facts[0] > facts[1] + 0.3 > facts[2] + 0.4
    assert blue[0] == 0 and 0.2 < blue[1] < 0.8 and blue[2] == pytest.approx(1)


def test_the_share_of_a_colour_by_hand():
    picture = Image.new("RGB", (4, 4), (245, 245, 245))
    for place in ((0, 0), (1, 0), (2, 0)):
        picture.putpixel(place, COLOURS["red"])
    picture.putpixel((3, 3), (60, 90, 210))  # almost blue
    assert colour_share(picture, "blue") == 0.25 and colour_share(picture, "red") == 0.75
    assert ColourShare("red").score_one(RewardInput("0", 0, "", image=picture)) == 0.75
    assert colour_share(Image.new("RGB", (4, 4), (245, 245, 245)), "blue") == 0
    with pytest.raises(ValueError, match="expected one of red, green, blue, yellow"):
        ColourShare("pink")


def test_both_things_of_a_demonstration_are_still_two_kinds():
    rng = np.random.default_rng(1)
    for sample in samples("repainted-validation"):
        written = demonstrated(Caption.from_dict(sample.answer), rng)
        assert len({(each.colour, each.shape) for each in written.clauses}) == 2
