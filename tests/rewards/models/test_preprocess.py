"""Preprocessing: the model's own for pictures, and tensor operations that come close to it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.rewards import RewardError
from mmrl.rewards.models.preprocess import (
    CLIP_MEAN,
    CLIP_STD,
    TensorPreprocess,
    preprocess_of_open_clip,
    preprocess_of_processor,
)
from tests.rewards.models.tiny_models import as_tensor, picture

FITS = ("crop", "squash", "pad")


def by_pil(tensor_preprocess: TensorPreprocess, picture: Image.Image) -> torch.Tensor:
    """[3, h, w]: with PIL, step by step."""
    height, width = tensor_preprocess.resized(picture.height, picture.width)
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    preprocessed = Image.new("RGB", (tensor_preprocess.width, tensor_preprocess.height))
    if tensor_preprocess.fit == "pad":
        preprocessed.paste(resized, ((tensor_preprocess.width - width) // 2, (tensor_preprocess.height - height) // 2))
    else:
        left, top = round((width - tensor_preprocess.width) / 2), round((height - tensor_preprocess.height) / 2)
        preprocessed = resized.crop((left, top, left + tensor_preprocess.width, top + tensor_preprocess.height))
    pixels = (np.asarray(preprocessed, np.float64) / 255 - tensor_preprocess.mean) / tensor_preprocess.std
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize("fit", FITS)
def test_tensor_preprocessing_differs_from_pil_by_rounding_only(fit):
    tensor_preprocess = TensorPreprocess(224, 224, fit, edge=224)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (317, 401, 3), dtype=np.uint8))
    for image in (picture(0, 512, 384), noise, picture(1, 90, 130)):
        gap = (tensor_preprocess(as_tensor(image)[None])[0] - by_pil(tensor_preprocess, image)).abs()
        levels = gap * torch.tensor(CLIP_STD)[:, None, None] * 255
        assert levels.max() < 1.2 and levels.mean() < 0.35


@pytest.mark.parametrize("fit", FITS)
@given(st.integers(9, 90), st.integers(9, 90))
def test_images_of_every_size_are_cropped_as_pil_does(fit, height, width):
    tensor_preprocess = TensorPreprocess(24, 24, fit, edge=24)
    image = Image.fromarray(np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, 3), np.uint8))
    preprocessed = tensor_preprocess(as_tensor(image)[None])[0]
    assert preprocessed.shape == (3, 24, 24)
    assert (preprocessed - by_pil(tensor_preprocess, image)).abs().max() < 0.02  # a pixel off would be 1 and more


def test_crop_test_detects_shifted_crops():
    tensor_preprocess = TensorPreprocess(24, 24, "crop", edge=24)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 60, 3), np.uint8))
    shifted = tensor_preprocess(as_tensor(image)[None])[0].roll(1, -1)
    assert (shifted - by_pil(tensor_preprocess, image)).abs().max() > 1


@pytest.mark.parametrize("fit", FITS)
def test_gradients_reach_every_visible_pixel(fit):
    tensor_preprocess = TensorPreprocess(16, 16, fit, edge=16)
    image = (torch.rand(1, 3, 20, 20) * 0.8 + 0.1).requires_grad_()
    (tensor_preprocess(image) * torch.randn(1, 3, 16, 16)).sum().backward()
    assert (image.grad != 0).all()


def test_padding_is_black_and_centred():
    preprocessed = TensorPreprocess(224, 224, "pad")(torch.ones(1, 3, 100, 51))[0]
    black = -torch.tensor(CLIP_MEAN) / torch.tensor(CLIP_STD)
    white = (1 - torch.tensor(CLIP_MEAN)) / torch.tensor(CLIP_STD)
    columns = (preprocessed[:, 100] - white[:, None]).abs().amax(0) < 1e-5
    assert columns.nonzero()[:, 0].tolist() == list(range(55, 55 + 114))  # 224 * 51 / 100 = 114.24; (224 - 114) / 2
    torch.testing.assert_close(preprocessed[:, :, 0], black[:, None].expand(3, 224))


def test_tensor_preprocessing_equals_transformers_pil_processors():
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    for edge, side, size in [(32, 32, (47, 61)), (32, 32, (61, 47)), (40, 32, (47, 62)), (32, 32, (33, 32))]:
        processor = CLIPImageProcessorPil(size={"shortest_edge": edge}, crop_size={"height": side, "width": side})
        image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8))
        theirs = processor(images=[image], return_tensors="pt")["pixel_values"]
        preprocessed = preprocess_of_processor(processor)(as_tensor(image)[None])
        assert theirs.shape == preprocessed.shape and (theirs - preprocessed).abs().max() < 0.02


def test_published_processor_settings_are_read():
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    clip = preprocess_of_processor(CLIPImageProcessorPil())
    assert (clip.height, clip.width, clip.edge, clip.fit, clip.resampling) == (224, 224, 224, "crop", "bicubic")
    assert clip.mean == (0.48145466, 0.4578275, 0.40821073) and clip.std == (0.26862954, 0.26130258, 0.27577711)
    siglip = preprocess_of_processor(SiglipImageProcessorPil(size={"height": 384, "width": 384}))
    assert (siglip.height, siglip.fit, siglip.mean, siglip.std) == (384, "squash", (0.5,) * 3, (0.5,) * 3)


def test_unsupported_preprocessing_raises():
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    with pytest.raises(RewardError, match="skips a step"):
        preprocess_of_processor(CLIPImageProcessorPil(do_normalize=False))
    with pytest.raises(RewardError, match="another filter"):
        preprocess_of_processor(CLIPImageProcessorPil(resample=0))
    with pytest.raises(RewardError, match="longest_edge"):
        preprocess_of_processor(CLIPImageProcessorPil(size={"longest_edge": 224}, do_center_crop=False))
    settings = dict(size=224, mean=CLIP_MEAN, std=CLIP_STD, interpolation="bicubic", resize_mode="longest")
    with pytest.raises(RewardError, match="pads with the colour 127"):
        preprocess_of_open_clip(settings | {"fill_color": 127})
    with pytest.raises(RewardError, match="preprocessing is"):
        preprocess_of_open_clip(settings | {"fill_color": 0, "size": (224, 196)})


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
def test_open_clip_settings_equal_open_clip_transforms(mode):
    from open_clip.transform import PreprocessCfg, image_transform_v2

    for size in [(47, 61), (61, 47), (32, 90), (20, 17)]:
        image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (*size, 3), np.uint8))
        settings = PreprocessCfg(size=32, resize_mode=mode)
        theirs = image_transform_v2(settings, is_train=False)(image)
        preprocessed = preprocess_of_open_clip(vars(settings))(as_tensor(image)[None])[0]
        assert theirs.shape == preprocessed.shape and (theirs - preprocessed).abs().max() < 0.02
