"""A collapse is seen in pictures, videos and texts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from mmrl.statistics.distances import group_diversity


def shade(*values: int) -> list[Image.Image]:
    return [Image.new("RGB", (40, 24), (value, value, value)) for value in values]


def test_image_diversity_is_the_root_mean_square_over_pairs():
    assert group_diversity(shade(0, 255), [0, 0]) == pytest.approx(1.0)
    values = (0, 51, 204)
    expected = np.sqrt(np.mean([((a - b) / 255) ** 2 for a, b in combinations(values, 2)]))
    assert group_diversity(shade(*values), [4, 4, 4]) == pytest.approx(expected)
    assert group_diversity(shade(7, 7, 0, 255), [0, 0, 1, 1]) == pytest.approx(0.5), "the mean over groups"
    assert group_diversity(shade(9, 9), [0, 0]) == 0


def test_video_diversity_uses_middle_frames_and_text_diversity_counts():
    videos = [shade(0, 0, 255), shade(255, 255, 0)]
    assert group_diversity(videos, [0, 0]) == pytest.approx(1.0)
    assert group_diversity(["a", "a", "b", "a"], [0, 0, 0, 0]) == 0.5


def test_groups_of_one_have_no_diversity():
    assert group_diversity(shade(0, 255), [0, 1]) is None
    assert group_diversity(["a", None], [0, 0]) is None
