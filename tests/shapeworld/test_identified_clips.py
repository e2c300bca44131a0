"""Clips of two things are measured by whether these stay what they are, and latent feedback moves the generator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl_shapeworld.identified_clips import (
    direction_of,
    identity_feedback,
    identity_of,
    motion_of,
    of_two,
    ordered_pairs,
)
from mmrl_shapeworld.motion import FRAMES, Motion, Move, draw_clip, sample_clip
from mmrl_shapeworld.scenes import BACKGROUND

MOTION = Motion((Move("red", "circle", "left"), Move("blue", "square", "up")))
OTHER = Motion((replace(MOTION.moves[0], shape="square"), MOTION.moves[1]))


def test_identity_is_the_share_of_frames_that_show_each_thing_as_it_is():
    rng = np.random.default_rng(0)
    scenes = sample_clip(MOTION, rng)
    right, other = draw_clip(scenes), draw_clip(sample_clip(OTHER, rng))
    assert identity_of(right, MOTION) == 1 and direction_of(right, MOTION) == 1
    for wrong in range(FRAMES + 1):  # of one of two things
        assert identity_of([*other[:wrong], *right[wrong:]], MOTION) == pytest.approx(1 - 0.5 * wrong / FRAMES)
    assert direction_of(right[::-1], MOTION) == 0 and identity_of(right[::-1], MOTION) == 1
    assert direction_of(other, MOTION) == 1  # by colours
    assert direction_of([right[0]] * FRAMES, MOTION) == 0


def test_motion_is_what_the_silhouette_leaves():
    frames = []
    for left, colour in ((0, "red"), (8, "blue"), (16, "blue")):  # half of a square of 16 x 16 stays each time
        frame = Image.new("RGB", (32, 32), tuple(BACKGROUND))
        frame.paste(colour, (left, 8, left + 16, 24))
        frames.append(frame)
    assert motion_of(frames) == pytest.approx(1 - 1 / 3)
    assert motion_of([frames[0]] * 3) == 0 and motion_of([frames[0], frames[2]]) == 1


@pytest.mark.slow
def test_pairs_are_ordered_by_identity_and_prompts_name_two_things():
    pairs, frames = ordered_pairs(16)
    assert 4 <= len(pairs.samples) == len(frames) <= 16 and pairs.clean.shape[1:] == (2, 4, FRAMES, 8, 8)
    assert (pairs.scores[:, 0] > pairs.scores[:, 1]).all()
    assert [len(each.chosen) for each in frames] == [FRAMES] * len(frames)
    assert all(len(sample.answer["moves"]) == 2 for sample in of_two("video-development"))


@pytest.mark.slow
def test_feedback_trains_the_generator_without_a_decoded_clip():
    small = {"on": "video-development", "prompts": 16, "drawn": 32, "pairs": 8, "updates": 3}
    before, after = identity_feedback(0, **small), identity_feedback(0, "feedback", lr=1e-3, **small)
    assert after["score"] != before["score"] and 0 <= after["accuracy"][0] <= 1
    assert len(after["identity"]) == len(before["direction"]) == 16
