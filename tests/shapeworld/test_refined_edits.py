"""Edits of edits: each step begins with the picture of the step before."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.data.media.decode import load_image
from mmrl_shapeworld import task_splits
from mmrl_shapeworld.editing import Edit
from mmrl_shapeworld.refined_edits import continued, refined_edits
from mmrl_shapeworld.scenes import draw


def test_a_continued_sample_has_the_picture_without_loss_and_all_else():
    sample = task_splits.samples("edit-development")[0]
    picture = draw(Edit.from_dict(sample.answer).target, 32)
    after = continued(sample, picture)
    assert np.array_equal(np.asarray(load_image(after.conditions["image"], "x")), np.asarray(picture))
    assert (after.prompt, after.answer) == (sample.prompt, sample.answer)


def test_an_untrained_editor_is_measured_after_each_step():
    found = refined_edits(0, on="development", prompts=6, depth=3, trained_depth=2)
    assert set(found) == {"strict-1", "strict-2", "strict-3", "past", "last"}
    assert all(len(values) == 6 for values in found.values())
    assert found["last"] == found["strict-3"]
    assert found["past"] == [c - b for b, c in zip(found["strict-2"], found["strict-3"], strict=True)]
    assert found["strict-1"] == pytest.approx(refined_edits(5, "development", 6, 1, 1)["strict-1"])
