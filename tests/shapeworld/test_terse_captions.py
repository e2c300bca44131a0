"""Captions that leave an attribute out: what follows from the rest, disjoint splits, and a careless annotator."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl_shapeworld import terse_captions
from mmrl_shapeworld.captions import Caption, Clause
from mmrl_shapeworld.splits import contains_heldout_kind, samples
from mmrl_shapeworld.terse_captions import KNOWN, SPLITS, TIMES, careless_caption, terse

SQUARES = Caption((Clause(1, "red", "circle"), Clause(1, "red", "square")), "above")
CIRCLES = Caption((Clause(1, "red", "circle"), Clause(1, "blue", "circle")))


def test_what_is_left_out_is_that_of_the_first_thing():
    assert terse(SQUARES, "colour") == "a red circle above a square"
    assert terse(CIRCLES, "shape") == "a red circle and a blue one"
    for split in SPLITS:
        for sample in samples(split):
            caption = Caption.from_dict(sample.answer)
            first, second = caption.clauses
            assert getattr(first, sample.source) == getattr(second, sample.source) and first != second
            assert not contains_heldout_kind(caption) and sample.prompt == terse(caption, sample.source)


def test_splits_share_no_caption_and_have_both_kinds():
    found = {split: {sample.prompt for sample in samples(split)} for split in SPLITS}
    assert {split: len(each) for split, each in found.items()} == SPLITS
    assert len(set().union(*found.values())) == sum(SPLITS.values())
    for split in SPLITS:
        shapes = sum(sample.source == "shape" for sample in samples(split))
        assert 0.3 < shapes / SPLITS[split] < 0.85
    with pytest.raises(KeyError):
        terse_captions.samples("terse-unknown")


def test_demonstrations_are_of_training_and_right_as_often_as_stated():
    taught = samples("terse-taught")
    assert len(taught) == TIMES * SPLITS["terse-train"] == len({sample.id for sample in taught})
    assert {sample.prompt for sample in taught} == {sample.prompt for sample in samples("terse-train")}
    right = [sample.demonstration == str(Caption.from_dict(sample.answer)) for sample in taught]
    assert np.mean(right) == pytest.approx(KNOWN, abs=0.05)
    assert all(sample.demonstration is None for sample in samples("terse-train"))


def test_a_careless_caption_differs_in_what_was_left_out_alone():
    rng = np.random.default_rng(0)
    written = {str(careless_caption(SQUARES, "colour", rng)) for _ in range(100)}
    assert written == {f"a red circle above a {colour} square" for colour in ("red", "green", "blue", "yellow")}
    written = {str(careless_caption(CIRCLES, "shape", rng)) for _ in range(100)}
    assert written == {f"a red circle and a blue {shape}" for shape in ("circle", "square", "triangle")}
