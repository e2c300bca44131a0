"""The size of a JPEG, in kB and negative."""

import io

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import RewardError, RewardInput, Status, load

NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def ask(image):
    return RewardInput(id="a", group=0, prompt="", image=image)


@pytest.mark.parametrize("quality", [1, 50, 95])
def test_compressibility_is_the_negative_file_size(quality):
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "JPEG", quality=quality)
    values = load("compressibility", quality=quality).score([ask(Image.fromarray(NOISE))]).values["compressibility"]
    assert values[0] == pytest.approx(-len(buffer.getvalue()) / 1000)


def test_smooth_images_score_higher_and_transparent_colours_count_nothing():
    hidden = Image.fromarray(np.dstack([NOISE, np.zeros((64, 64), np.uint8)]))
    pictures = [Image.fromarray(NOISE), Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 64), "white"), hidden]
    noise, flat, white, seen = load("compressibility").score([ask(p) for p in pictures]).values["compressibility"]
    assert noise < flat < 0
    assert seen == white


def test_images_that_jpeg_cannot_encode_are_errors():
    output = load("compressibility").score([ask(Image.new("1", (66_000, 400))), ask(Image.new("RGB", (0, 1)))])
    assert output.status["compressibility"] == [Status.ERROR] * 2  # there is no lowest value to give
    assert [row["compressibility"].kind for row in output.failures] == ["unbounded"] * 2


def test_invalid_qualities_are_rejected():
    for quality in (0, 96):
        with pytest.raises(RewardError, match=f"quality is {quality}; JPEG takes 1 to 95"):
            load("compressibility", quality=quality)
