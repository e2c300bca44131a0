"""Pictures of things that are smaller than those of the detection task."""

from __future__ import annotations

import pytest

from mmrl_shapeworld import splits
from mmrl_shapeworld.vqa.little_boxes import NAMES, SIDES, SIZES


def test_things_have_the_stated_sides_and_no_picture_is_in_two_splits():
    found = {name: splits.samples(name) for name in NAMES}
    assert [len(each) for each in found.values()] == list(SIZES.values())
    pictures = [sample.images for each in found.values() for sample in each]
    assert len(set(pictures)) == len(pictures)
    boxes = [each["box"] for samples in found.values() for sample in samples for each in sample.answer]
    longest = {max(x2 - x1, y2 - y1) for x1, y1, x2, y2 in boxes}
    assert longest <= set(range(SIDES[0] - 1, SIDES[1])) and max(longest) == SIDES[1] - 1
    assert {sample.source for each in found.values() for sample in each} == {"detection"}


def test_training_alone_has_demonstrations():
    demonstrated = {name: {sample.demonstration is not None for sample in splits.samples(name)} for name in NAMES}
    assert demonstrated == {"little-train": {True}, "little-development": {False}, "little-validation": {False}}
    with pytest.raises(KeyError, match="little-ood"):
        splits.samples("little-ood")
