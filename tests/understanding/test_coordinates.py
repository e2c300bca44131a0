"""Pixels in answers are those of the picture as the model is given it."""

from __future__ import annotations

import pytest
from PIL import Image
from transformers import AutoProcessor

from mmrl.data.media.budget import ImageBudget, fit_image
from mmrl.understanding.tasks.coordinates import coordinate_format, model_input_sizes
from tests.understanding.tiny_vlms import build


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return AutoProcessor.from_pretrained(build("qwen2_5_vl", tmp_path_factory.mktemp("qwen")))


@pytest.mark.parametrize("size", [(40, 30), (64, 64), (300, 90), (17, 33), (500, 500), (35, 21)])
@pytest.mark.parametrize("budget", [ImageBudget(), ImageBudget(max_pixels=1500)])
def test_input_size_is_that_of_the_processor_patches(qwen, size, budget):
    picture = fit_image(Image.new("RGB", size), budget)
    grid = qwen.image_processor(images=[picture], return_tensors="pt")["image_grid_thw"][0].tolist()
    patch = qwen.image_processor.patch_size
    assert model_input_sizes(qwen, budget)(size) == (grid[2] * patch, grid[1] * patch)


@pytest.mark.integration
def test_environments_know_the_size_at_which_a_policy_reads_a_picture(player):
    policy = player("qwen2_5_vl")
    images = policy.vlm.processor.image_processor
    grid = images(images=[Image.new("RGB", (300, 90))], return_tensors="pt")["image_grid_thw"][0].tolist()
    assert policy.reader.input_size(300, 90) == (grid[2] * images.patch_size, grid[1] * images.patch_size)
    assert policy.reader.input_size(300, 90) != (300, 90)


def test_input_size_of_other_processors_is_the_fitted_image():
    class Tiles:
        image_processor = type("Processor", (), {"size": {"height": 336, "width": 336}, "patch_size": 14})

    assert model_input_sizes(Tiles, ImageBudget(max_pixels=5000))((200, 100)) == (100, 50)


def test_only_paligemma_uses_location_tokens(qwen):
    assert coordinate_format("paligemma", "norm_1", None, ImageBudget()).location_tokens
    assert not coordinate_format("paligemma", "norm_1", None, ImageBudget(), requested="norm_1000").location_tokens
    assert coordinate_format("qwen2_5_vl", "pixel", qwen, ImageBudget()).space == "pixel"
