"""The diffusion decoder of codes: a function of codes, without gradients, one step by hand, and named errors."""

from __future__ import annotations

import json

import pytest
import torch
from diffusers import DDIMScheduler, UNet2DModel
from PIL import Image
from safetensors.torch import load_file, save_file

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import DiffusionCodec, PatchCodec, load_codec
from mmrl.generation.image_tokens.diffusion_decoder import FOLDER, DiffusionDecoder, noise_of

CPU = torch.device("cpu")
SCHEDULE = {"prediction_type": "sample", "timestep_spacing": "trailing", "clip_sample": False}


def tiny_unet(channels: int = 5) -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        in_channels=12 + channels,
        out_channels=12,
        block_out_channels=(8, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
        add_attention=False,
        norm_num_groups=4,
    ).half()  # as a folder keeps it


def tiny_decoder(steps: int = 3, codes: int = 7) -> DiffusionDecoder:
    known = torch.randn(codes, 5, generator=torch.Generator().manual_seed(1)).half()
    return DiffusionDecoder(tiny_unet().float(), DDIMScheduler(**SCHEDULE), known, steps)


@pytest.fixture
def codec():
    patches = torch.randint(0, 256, (7, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    return DiffusionCodec(patches, tiny_decoder())


@pytest.fixture
def codes():
    return torch.randint(0, 7, (3, 4, 6), generator=torch.Generator().manual_seed(3))


def as_bytes(pictures):
    return [picture.tobytes() for picture in pictures]


def test_a_picture_is_a_function_of_its_codes(codec, codes):
    pictures = codec.decode(codes)
    assert pictures[0].size == (12, 8) and as_bytes(codec.decode(codes)) == as_bytes(pictures)
    torch.manual_seed(9)  # the global generator has no part
    pixels, turned = tiny_decoder().pixels(codes), tiny_decoder().pixels(codes.flip(0)).flip(0)
    assert torch.allclose(pixels, turned, atol=1e-5)  # nor has the place in a batch
    other = codes.clone()
    other[0, 0, 0] = (other[0, 0, 0] + 1) % 7
    assert (tiny_decoder().pixels(other) - pixels).abs().amax((1, 2, 3)).tolist()[0] > 1e-3
    noise = noise_of(codes, 12)
    assert noise.shape == (3, 12, 4, 6) and not torch.equal(noise[0], noise[1])
    assert abs(float(noise.mean())) < 0.1 and abs(float(noise.std()) - 1) < 0.1


def test_one_step_gives_the_predicted_squares(codes):
    """By hand: from noise alone, a DDIM step to the end arrives at the prediction itself, square by square."""
    unet, known = tiny_unet().float(), torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).half().float()
    noise = noise_of(codes[:1], 12)
    with torch.no_grad():
        squares = unet(torch.cat([noise, known[codes[:1]].permute(0, 3, 1, 2)], 1), 999).sample
    pixels = tiny_decoder(steps=1).pixels(codes[:1])
    for row, column in ((0, 0), (2, 5)):
        square = pixels[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert torch.allclose(square.flatten(), squares[0, :, row, column], atol=1e-4)


def test_no_gradient_is_kept_and_the_decoder_stays_frozen(codec, codes):
    with torch.enable_grad():
        assert not tiny_decoder().pixels(codes).requires_grad
    with pytest.raises(ConfigError, match=r"a diffusion decoder \(diffusion_decoder/\) stays frozen"):
        codec.pixel_decoder()
    assert codec.decoder_state() == {}


def test_a_folder_keeps_the_decoder_and_codes_are_those_of_the_table(tmp_path, codec, codes):
    codec.save(tmp_path)
    again = load_codec(tmp_path, CPU)
    assert as_bytes(again.decode(codes)) == as_bytes(codec.decode(codes))
    plain = PatchCodec(load_file(tmp_path / "patches.safetensors")["patches"])
    assert torch.equal(again.encode(plain.decode(codes), 4, 6), codes)
    assert as_bytes(plain.decode(codes)) != as_bytes(codec.decode(codes))


def test_the_model_card_draws_the_same_picture(tmp_path, codec, codes):
    codec.save(tmp_path)
    lines = codec.snippet()
    known = {"torch": torch, "Image": Image, "folder": str(tmp_path), "codes": codes[0]}
    exec("\n".join(["import json", "from pathlib import Path", lines.library, *lines.load, *lines.decode]), known)
    assert known["image"].tobytes() == codec.decode(codes[:1])[0].tobytes() and eval(lines.count, known) == 7


def test_errors_name_the_file_and_what_to_do(tmp_path, codec):
    patches = codec._patches
    with pytest.raises(ConfigError, match=r"patches\.safetensors has 7 codes, and the decoder of .* knows 9"):
        DiffusionCodec(patches, tiny_decoder(codes=9))
    with pytest.raises(ConfigError, match=r"decoder\.json: steps must be a whole number from 1 to 1000, not 0"):
        tiny_decoder(steps=0)
    with pytest.raises(ConfigError, match=r"reads 16 channels, but squares of 12 and embeddings of 5 are 17"):
        DiffusionDecoder(tiny_unet(4).float(), DDIMScheduler(**SCHEDULE), torch.zeros(7, 5), 2)
    codec.save(tmp_path)
    inside = tmp_path / FOLDER
    for content, message in (("{", "cannot be read"), ('{"steps": "four"}', "expected a map with the key steps")):
        (inside / "decoder.json").write_text(content)
        with pytest.raises(ConfigError, match=rf"decoder\.json.*{message}"):
            load_codec(tmp_path, CPU)
    (inside / "decoder.json").write_text(json.dumps({"steps": 2}))
    save_file({"other": torch.zeros(2)}, inside / "codes.safetensors")
    with pytest.raises(ConfigError, match=r"codes\.safetensors: expected a tensor 'embeddings'"):
        load_codec(tmp_path, CPU)
    (inside / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no UNet2DModel"):
        load_codec(tmp_path, CPU)
