"""The experiment on moments: what the arms share, what they learn from, and what is measured."""

from __future__ import annotations

import pytest

from mmrl.build.datasets import load_samples
from mmrl_shapeworld.moment_runs import TRAINING, grounded_moments

SMALL = {"imitation": 2, "iterations": 1, "pool": 16, "answers": 4, "share": 0.5, "prompts": 12}


@pytest.mark.slow
def test_each_arm_is_measured_by_the_overlap_on_the_same_clips():
    arms = [
        grounded_moments(3, on="shapeworld:moments-development", **arm, **SMALL)
        for arm in ({}, {"threshold": 0.5}, {"kept": "all", "threshold": 1.0})
    ]
    tested = load_samples("shapeworld:moments-development")[:12]
    for found in arms:
        assert len(found["iou"]) == len(found["hit"]) == 12 and len(found["moment"]) == 4
        assert [each >= 0.5 for each in found["iou"]] == [bool(each) for each in found["hit"]]
        assert found["moment"] == [
            value for value, sample in zip(found["iou"], tested, strict=True) if sample.source == "moment"
        ]
    share = sum(sample.source == "moment" for sample in load_samples(TRAINING)[:16]) / 16
    assert all(found["among"] == [share] for found in arms)
