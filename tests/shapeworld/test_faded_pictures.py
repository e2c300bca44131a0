"""Faded pictures: the same questions about the same things, in pale colours."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl_shapeworld.scenes import BACKGROUND
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa import faded_pictures, question_splits

READER = MediaReader(MediaBudget())


@pytest.mark.integration
def test_a_faded_picture_shows_what_it_showed_and_nothing_else_is_changed():
    found = samples("faded-development")
    tasks = "+".join(faded_pictures.TASKS)
    full = question_splits.samples(f"vlm-{tasks}-development")
    assert len(found) == len(full) == 1536
    for pale, sample in zip(found[:24], full[:24], strict=True):
        assert (pale.prompt, pale.answer, pale.rewards, pale.task) == (
            sample.prompt,
            sample.answer,
            sample.rewards,
            sample.task,
        )
        before, after = (np.asarray(READER.image(each.images[0])).astype(float) for each in (sample, pale))
        ground = np.array(BACKGROUND, float)
        np.testing.assert_allclose(ground - after, 0.3 * (ground - before), atol=0.51)
        assert len(np.unique(after.reshape(-1, 3), axis=0)) == len(np.unique(before.reshape(-1, 3), axis=0))
    with pytest.raises(KeyError, match="choose one of faded-train"):
        faded_pictures.samples("faded-other")
