"""ShapeWorld's rewards look at pictures as people see them."""

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import RewardInput, Status
from mmrl_shapeworld import splits
from mmrl_shapeworld.caption_rewards import CaptionCheck, IndependentCount
from mmrl_shapeworld.captions import sample_scene
from mmrl_shapeworld.scenes import draw

CAPTION = splits.captions("train")[0]
PICTURE = draw(sample_scene(CAPTION, np.random.default_rng(0)))


def scored(reward, *pictures):
    references = {"answer": CAPTION.as_dict()}
    return reward.score([RewardInput("a", 0, "", image=picture, references=references) for picture in pictures])


@pytest.mark.parametrize("reward", [CaptionCheck(), IndependentCount()], ids=["check", "count"])
def test_transparent_images_are_rewarded_as_white_and_opaque_ones_as_rgb(reward):
    hidden, result = PICTURE.convert("RGBA"), PICTURE.convert("RGBA")
    hidden.putalpha(0)
    white = Image.new("RGB", PICTURE.size, "white")
    output = scored(reward, PICTURE, result, hidden, white)
    plain, opaque, unseen, empty = output.values[reward.name]
    assert output.status[reward.name] == [Status.OK] * 4
    assert plain == opaque and plain > 0.9
    assert unseen == empty and empty < plain


@pytest.mark.parametrize("reward", [CaptionCheck(), IndependentCount()], ids=["check", "count"])
def test_unreadable_images_have_a_status(reward):
    output = scored(reward, Image.new("RGB", (1, 400)), PICTURE)
    assert output.status[reward.name] == [Status.INVALID, Status.OK]
