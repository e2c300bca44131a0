"""Distances between answers, with an encoder and without."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from mmrl.statistics.distances import Distances

RED, BLUE, LARGE = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue"), Image.new("RGB", (9, 9), "red")


class ByColour:
    """A unit vector of a picture's mean colour."""

    name = "mean colours"

    def __call__(self, pictures):
        points = np.array([np.asarray(each, np.float32).mean((0, 1)) for each in pictures])
        return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_image_distances_use_the_encoder():
    by_pixels, by_colour = Distances(), Distances(ByColour())
    np.testing.assert_allclose(by_colour.diversity([[RED, BLUE], [RED, RED]]), [1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(by_pixels.diversity([[RED, BLUE], [RED, RED]]), [math.sqrt(2 / 3), 0.0], atol=1e-6)
    np.testing.assert_allclose(by_colour.drift([[RED, RED]], [[RED, BLUE]]), [0.5], atol=1e-6)
    assert "pixels" in by_pixels.description(texts=False) and "mean colours" in by_colour.description(texts=False)


def test_text_distances_compare_letters():
    found = Distances()
    np.testing.assert_allclose(found.diversity([["a", "a", "b"], ["a", "a", "a"]]), [2 / 3, 0])
    np.testing.assert_allclose(found.drift([["kitten"], ["same"]], [["sitting"], ["same"]]), [3 / 7, 0])
    assert "edit distance" in found.description(texts=True)


def test_incomparable_values_have_distance_nan():
    found = Distances()
    assert math.isnan(found.diversity([[RED, LARGE]])[0]) and math.isnan(found.drift([[None]], [[RED]])[0])
    assert math.isnan(found.drift([["text"]], [[RED]])[0])
    assert found.drift([[RED]], [[RED]])[0] == pytest.approx(0.0)
