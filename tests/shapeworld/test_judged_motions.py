"""Clips of one thing, judged on two axes, and pairs of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl.data.media.decode import load_image
from mmrl.rewards import RewardInput
from mmrl_shapeworld import judged_motions, splits
from mmrl_shapeworld.judged_motions import FULL_WAY, MotionAxes, match_of, motion_of, single_motion
from mmrl_shapeworld.motion import DIRECTIONS, Motion, draw_clip, sample_clip
from mmrl_shapeworld.scenes import BACKGROUND, Scene, Thing


def square(*places: float, colour: str = "red") -> list[Image.Image]:
    return draw_clip([Scene((Thing(colour, "square", x, 0.5, 0.3),)) for x in places])


RIGHT = Motion.from_dict({"moves": [{"colour": "red", "shape": "square", "direction": "right"}]})


def test_the_way_in_the_direction_of_the_prompt_by_hand():
    assert motion_of(square(0.3, 0.5), RIGHT) == pytest.approx(0.5 + 0.5 * 0.2 / FULL_WAY, abs=0.06)
    assert motion_of(square(0.5, 0.3), RIGHT) == pytest.approx(0.5 - 0.5 * 0.2 / FULL_WAY, abs=0.06)
    assert motion_of(square(0.5, 0.5), RIGHT) == 0.5
    assert motion_of([Image.new("RGB", (32, 32), BACKGROUND)] * 2, RIGHT) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_each_axis_ignores_what_the_other_judges(seed):
    rng = np.random.default_rng(seed)
    motion = single_motion(rng)
    (move,) = motion.moves
    clip = draw_clip(sample_clip(motion, rng))
    back = {"left": "right", "right": "left", "up": "down", "down": "up"}[move.direction]
    other = Motion((replace(move, direction=back),))
    assert match_of(clip, motion) == match_of(clip, other) > 0.95
    assert motion_of(clip, motion) > 0.8 and motion_of(clip, other) == pytest.approx(1 - motion_of(clip, motion))
    wrong = Motion((replace(move, colour="blue" if move.colour == "red" else "red"),))
    assert match_of(clip, wrong) == 0.0 and motion_of(clip, wrong) == motion_of(clip, motion)
    item = RewardInput(id="0", group=0, prompt=str(motion), video=clip, references={"answer": motion.as_dict()})
    found = MotionAxes().score_one(item)
    assert found["motion_axes"] == (found["motion_axes_match"] + found["motion_axes_motion"]) / 2
    single = MotionAxes().score([replace(item, video=clip[:1])])
    assert single.values["motion_axes"][0] == 0.0  # malformed


@pytest.mark.slow
def test_pairs_are_labelled_by_the_axes_in_every_combination():
    found = splits.samples("motion-pairs-development")[:80]
    labels = Counter(tuple(each.metadata["axes"].values()) for each in found)
    assert {("chosen", "equal"), ("equal", "chosen"), ("chosen", "chosen"), ("chosen", "rejected")} <= set(labels)
    for sample in found[:10]:
        colour, shape, _, direction = sample.prompt.split()[1:]
        motion = Motion.from_dict({"moves": [{"colour": colour, "shape": shape, "direction": direction}]})
        assert direction in DIRECTIONS
        clips = [[load_image(frame) for frame in side] for side in (sample.chosen, sample.rejected)]
        for axis, judge in (("match", match_of), ("motion", motion_of)):
            gap = judge(clips[0], motion) - judge(clips[1], motion)
            stated = sample.metadata["axes"][axis]
            assert stated == ("equal" if abs(gap) < judged_motions.LEAST else "chosen" if gap > 0 else "rejected")


def test_prompts_of_the_sets_are_of_one_thing():
    assert {len(each.answer["moves"]) for each in splits.samples("motions-one-development")} == {1}
    with pytest.raises(KeyError, match="there are no judged motions 'motions-one-test'"):
        judged_motions.samples("motions-one-test")
