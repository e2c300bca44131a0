"""Fill and removal: right pictures, pictures that are right in the other task alone, and half right ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl.data.media.decode import load_image, load_mask
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld import mask_tasks
from mmrl_shapeworld.inpainting import Hole
from mmrl_shapeworld.mask_tasks import CRITERIA, MaskCheck, MaskTask, judge_mask, sample_mask_task
from mmrl_shapeworld.scenes import Scene, Thing, draw

OTHER = Thing("yellow", "triangle", 0.74, 0.72, 0.34)
HOLE = Hole(Scene((Thing("red", "square", 0.25, 0.25, 0.25), OTHER)), (0, 0, 16, 16), "red", "square")


@pytest.mark.integration
def test_what_is_right_in_one_task_is_wrong_in_the_other():
    rng = np.random.default_rng(0)
    for _ in range(40):
        fill, filled = sample_mask_task(rng, "fill")
        verdict = judge_mask(draw(filled), fill.hole)
        assert verdict.fill_iou > 0.8 and verdict.residue > 0.05 and verdict.kept == 1.0
        removal, emptied = sample_mask_task(rng, "removal")
        verdict = judge_mask(draw(emptied), removal.hole)
        assert verdict.fill_iou == verdict.residue == 0.0 and verdict.kept == 1.0
        untouched = judge_mask(draw(removal.source), removal.hole)
        assert untouched.fill_iou > 0.8 and untouched.residue > 0.05
    assert str(MaskTask(HOLE, "removal")) == "remove a red square" and str(MaskTask(HOLE, "fill")) == "a red square"


def test_scores_by_hand():
    """A square of 8 × 8 pixels in a hole of 16 × 16; then one of another colour, and one with something beside it."""
    verdict = judge_mask(draw(HOLE.source), HOLE)
    assert (verdict.fill_iou, verdict.residue) == (1.0, 64 / 256) and verdict.by("residue") == 0.75
    blue = judge_mask(draw(Scene((Thing("blue", "square", 0.25, 0.25, 0.25), OTHER))), HOLE)
    assert (blue.fill_iou, blue.structure, blue.alignment) == (0.0, 1.0, 0.25)
    picture = np.asarray(draw(HOLE.source)).copy()
    picture[0:4, 0:4] = (50, 85, 220)  # 16 pixels of another colour, apart from the 64
    spoilt = judge_mask(Image.fromarray(picture), HOLE)
    assert spoilt.fill_iou == pytest.approx(64 / 80) and spoilt.residue == 80 / 256
    empty = judge_mask(draw(Scene((OTHER,))), HOLE)
    assert (empty.fill_iou, empty.structure, empty.residue, empty.by("residue")) == (0.0, 0.0, 0.0, 1.0)
    assert judge_mask(draw(Scene(())), HOLE).kept < 1.0  # the triangle outside is gone, and the hole is right


def test_a_task_is_done_by_its_own_measure():
    """A removal may leave 7 of the hole's 256 pixels, which are less than 3 %, and a fill needs an IoU of one half."""
    whole, empty = judge_mask(draw(HOLE.source), HOLE), judge_mask(draw(Scene((OTHER,))), HOLE)
    assert whole.done("fill") and not whole.done("removal")
    assert empty.done("removal") and not empty.done("fill")
    picture = np.asarray(draw(Scene((OTHER,)))).copy()
    picture[0, :7] = (50, 85, 220)
    assert judge_mask(Image.fromarray(picture), HOLE).done("removal")
    picture[0, 7] = (50, 85, 220)
    assert not judge_mask(Image.fromarray(picture), HOLE).done("removal")
    assert replace(whole, fill_iou=0.5).done("fill") and not replace(whole, fill_iou=0.49).done("fill")


@pytest.mark.integration
def test_splits_have_both_tasks_and_no_picture_in_common():
    seen = mask_tasks.samples("masks-train")
    assert [sample.task for sample in seen[:4]] == ["fill", "removal", "fill", "removal"]
    for sample in seen[:20]:
        hole = Hole.from_dict(sample.answer)
        assert load_image(sample.conditions["image"]).tobytes() == draw(hole.source).tobytes()
        assert np.array_equal(np.asarray(load_mask(sample.conditions["mask_image"])) > 0, hole.mask())
        assert sample.metadata["criterion"] == list(CRITERIA[sample.task])
        assert sample.prompt == ("remove " if sample.task == "removal" else "") + sample.metadata["subject"]
    pictures = {sample.conditions["image"] for sample in seen}
    for name in ("masks-development", "masks-validation", "masks-validation-more"):
        further = {sample.conditions["image"] for sample in mask_tasks.samples(name)}
        assert not pictures & further
        pictures |= further


def test_the_check_takes_the_task_of_its_sample():
    sample = mask_tasks.samples("masks-train")[1]
    hole = Hole.from_dict(sample.answer)
    empty = draw(Scene(hole.source.things[1:]))
    for task, right in (("removal", True), ("fill", False)):
        item = reward_input(replace(sample, task=task), empty, group=0, id="a")
        values = MaskCheck().score([item]).values
        assert values["shapeworld_masks"][0] == float(right)
        assert (values["shapeworld_masks_kept"][0], values["shapeworld_masks_residue"][0]) == (1.0, 0.0)
        assert values["shapeworld_masks_done"][0] == float(right)
