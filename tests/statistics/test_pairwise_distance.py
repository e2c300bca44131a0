"""Pairwise distance against values computed by hand."""

import numpy as np
import pytest
from PIL import Image

from mmrl.evaluation import EvaluationError, pairwise_distance

BLACK, WHITE, RED = (Image.new("RGB", (4, 2), colour) for colour in ("black", "white", "red"))


def test_pairwise_distance_by_hand():
    assert pairwise_distance([BLACK, WHITE]) == pytest.approx(1)
    assert pairwise_distance([RED, RED, RED]) == 0
    assert pairwise_distance([BLACK, RED]) == pytest.approx((1 / 3) ** 0.5)
    assert pairwise_distance([BLACK, WHITE, WHITE]) == pytest.approx(2 / 3)  # pairs 1, 1, 0


def test_pairwise_distance_ignores_order_and_agrees_with_theory():
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    images = [Image.fromarray(picture) for picture in noise]
    assert pairwise_distance(images[::-1]) == pytest.approx(pairwise_distance(images))
    assert pairwise_distance(images) == pytest.approx((1 / 6) ** 0.5, rel=0.1)  # of two uniform variables


@pytest.mark.parametrize("pictures, message", [([RED], "not 1"), ([RED, Image.new("RGB", (2, 2))], "differ in size")])
def test_pairwise_distance_rejects_single_pictures_and_mixed_sizes(pictures, message):
    with pytest.raises(EvaluationError, match=message):
        pairwise_distance(pictures)
