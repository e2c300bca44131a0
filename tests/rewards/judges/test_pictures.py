"""Pictures and videos as a request carries them."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.judges.judge_base import data_url, spread_frames


def read(url: str) -> Image.Image:
    head, _, data = url.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert head == f"data:image/{image.format.lower()};base64"
    return image


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.randint(0, 256, (height, width, bands), np.uint8)
    return Image.fromarray(values.squeeze(-1) if bands == 1 else values, mode=mode)


@pytest.mark.parametrize("size", [(1, 1), (3, 7), (64, 64), (200, 1), (33, 129)])
def test_png_data_urls_are_lossless(size):
    image = noise(*size)
    np.testing.assert_array_equal(np.asarray(read(data_url(image, "png", 1024))), np.asarray(image))


def test_jpeg_data_urls_are_similar_and_smaller():
    image = Image.fromarray(np.add.outer(np.arange(256), np.zeros(256)).astype(np.uint8)).convert("RGB")
    noisy = Image.blend(image, noise(256, 256, "L").convert("RGB"), 0.1)
    url = data_url(noisy, "jpeg", 1024)
    assert len(url) < len(data_url(noisy, "png", 1024)) / 2
    assert np.abs(np.asarray(read(url), float) - np.asarray(noisy)).mean() < 3


@pytest.mark.parametrize("size", [(2000, 1000), (1000, 2000), (5000, 30), (64, 65)])
def test_images_are_resized_within_the_limit_with_their_aspect_ratio(size):
    picture = Image.new("RGB", size, "red")
    image = read(data_url(picture, "png", 64))
    assert max(image.size) == 64
    assert image.size[0] == max(1, round(size[0] * 64 / max(size)))
    assert picture.size == size, "the picture itself is left as it is"


def test_small_images_are_not_enlarged():
    assert read(data_url(noise(5, 4), "png", 1024)).size == (5, 4)


def test_transparent_pixels_become_white():
    hidden = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert read(data_url(hidden, "png", 64)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "LA"])
@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_images_of_other_modes_become_rgb(mode, form):
    assert read(data_url(noise(9, 9).convert(mode), form, 64)).mode == "RGB"


def test_invalid_images_are_answer_or_scorer_failures():
    with pytest.raises(ScoringFailed) as failed:
        data_url(np.zeros((4, 4, 3)), "png", 64)
    assert failed.value.kind == "wrong_type"
    with pytest.raises(InvalidAnswer, match="pixels"):
        data_url(Image.new("1", (6_000, 6_000)), "png", 64)
    with pytest.raises(InvalidAnswer, match="pixels"):
        data_url(Image.new("RGB", (0, 5)), "png", 64)


@pytest.mark.parametrize(
    ("frames", "most", "expected"),
    [(3, 8, [0, 1, 2]), (9, 3, [0, 4, 8]), (10, 1, [5]), (100, 4, [0, 33, 66, 99]), (0, 3, []), (8, 8, list(range(8)))],
)
def test_frames_are_spread_from_the_first_to_the_last(frames, most, expected):
    assert spread_frames(list(range(frames)), most) == expected
