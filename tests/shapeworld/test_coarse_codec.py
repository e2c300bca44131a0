"""The codec of half the detail: codes are those of the shipped one, and its pictures can be mended."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file

from mmrl.data.media.decode import load_image
from mmrl.generation.image_tokens.codecs import PatchCodec
from mmrl_shapeworld import pictured_captions
from mmrl_shapeworld.coarse_codec import CoarsePatches
from mmrl_shapeworld.shipped_models import IMAGE_AR


def codecs():
    patches = load_file(IMAGE_AR / "patches.safetensors")["patches"]
    return PatchCodec(patches), CoarsePatches(patches)


def test_codes_are_the_shipped_ones_and_squares_have_their_mean():
    fine, coarse = codecs()
    pictures = [
        load_image(s.demonstration["image"], s.id) for s in pictured_captions.samples("pictured-development")[:4]
    ]
    codes = fine.encode(pictures, 8, 8)
    assert torch.equal(coarse.encode(pictures, 8, 8), codes)
    pixels, whole = (np.asarray(each.decode(codes)[0], float) for each in (coarse, fine))
    squares = whole.reshape(16, 2, 16, 2, 3).mean((1, 3))
    assert np.abs(pixels[::2, ::2] - squares).max() <= 0.5 and np.array_equal(pixels[::2, ::2], pixels[1::2, 1::2])
    assert np.abs(pixels - whole).max() > 20  # detail is lost


def test_a_folder_keeps_the_table_and_the_refiner(tmp_path):
    _, coarse = codecs()
    with torch.no_grad():
        coarse.pixel_decoder().last.bias.add_(0.3)
    coarse.save(tmp_path)
    again = CoarsePatches(load_file(tmp_path / "patches.safetensors")["patches"])
    again.load_decoder(tmp_path)
    codes = torch.arange(64).view(1, 8, 8)
    assert again.decode(codes)[0].tobytes() == coarse.decode(codes)[0].tobytes()
