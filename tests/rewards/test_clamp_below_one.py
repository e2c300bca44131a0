"""Scores that are not perfect, as float32."""

import numpy as np

from mmrl.rewards.core.reward_io import LARGEST_BELOW_ONE, clamp_below_one


def test_scores_just_below_perfect_stay_below_one_in_float32():
    assert np.float32(1 - 1e-9) == 1  # what would happen without
    assert np.float32(clamp_below_one(1 - 1e-9)) < 1 and np.float32(clamp_below_one(1.0)) < 1
    assert np.nextafter(np.float32(1), np.float32(0)) == np.float32(LARGEST_BELOW_ONE)


def test_other_scores_are_unchanged():
    assert [clamp_below_one(value) for value in (-1.0, 0.0, 0.5, 0.999)] == [-1.0, 0.0, 0.5, 0.999]
