"""The split with few clips beside many pictures."""

from __future__ import annotations

from collections import Counter

import pytest

from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa import scarce_clips


def test_few_clips_of_training_stand_beside_all_pictures_of_two_tasks():
    found = samples("scarce-clips-train")
    assert Counter(sample.source for sample in found) == {"video-qa": 16, "puzzle": 600, "grounding": 600}
    assert {sample.id for sample in found} < {sample.id for sample in samples("vlm-train")}
    assert set(Counter(sample.answer for sample in found[:16])) == set("ABCD")


def test_another_split_of_few_clips_is_refused():
    with pytest.raises(KeyError, match="choose one of scarce-clips-train"):
        scarce_clips.samples("scarce-clips-validation")
