"""Decoders of codecs that are trained: they begin as the codec was, and a folder keeps what they learnt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import VQModel
from PIL import Image

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import PatchCodec, load_codec
from mmrl.generation.image_tokens.image_token_model import PIXELS_TO_IMAGE, to_pixels
from mmrl.generation.image_tokens.picture_decoder import PictureDecoder, PictureDiscriminator

CPU = torch.device("cpu")


@pytest.fixture
def patches():
    return torch.randint(0, 256, (7, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def codes():
    return torch.randint(0, 7, (2, 3, 2), generator=torch.Generator().manual_seed(1))


def stirred(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))


def test_an_untrained_refiner_draws_the_table_to_the_byte(patches, codes):
    codec = PatchCodec(patches)
    before = codec.decode(codes)
    decoder = codec.pixel_decoder()
    assert [picture.tobytes() for picture in codec.decode(codes)] == [picture.tobytes() for picture in before]
    stirred(decoder)
    assert [picture.tobytes() for picture in codec.decode(codes)] != [picture.tobytes() for picture in before]


def test_a_folder_keeps_a_refiner_and_codes_stay(tmp_path, patches, codes):
    codec = PatchCodec(patches)
    stirred(codec.pixel_decoder())
    codec.save(tmp_path)
    again = load_codec(tmp_path, CPU)
    pictures = codec.decode(codes)
    assert [each.tobytes() for each in again.decode(codes)] == [each.tobytes() for each in pictures]
    plain = PatchCodec(patches)
    assert torch.equal(again.encode(plain.decode(codes), 3, 2), codes)
    plain.load_decoder(tmp_path)
    assert [each.tobytes() for each in plain.decode(codes)] == [each.tobytes() for each in pictures]


def test_the_model_card_of_a_refined_folder_draws_the_same_picture(tmp_path, patches, codes):
    codec = PatchCodec(patches)
    stirred(codec.pixel_decoder())
    codec.save(tmp_path)
    lines = codec.snippet()
    known = {"torch": torch, "Image": Image, "folder": str(tmp_path), "codes": codes[0]}
    code = "\n".join([lines.library, *lines.load, f"count = {lines.count}", "with torch.no_grad():"])
    code += "".join(f"\n    {line}" for line in lines.decode)
    exec(code, known)
    assert known["image"].tobytes() == codec.decode(codes)[0].tobytes() and known["count"] == 7
    assert PIXELS_TO_IMAGE in lines.decode


def test_a_vq_model_decodes_as_diffusers_does_and_trains_its_half_that_makes_pixels(painter_folder, tmp_path):
    folder = painter_folder("composite")
    model, codec = VQModel.from_pretrained(folder / "vqvae").eval(), load_codec(folder, CPU)
    codes = torch.randint(0, codec.codes, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    latents = model.quantize.get_codebook_entry(codes.flatten(), (2, 3, 4, model.quantize.vq_embed_dim))
    decoder = codec.pixel_decoder()
    with torch.no_grad():
        whole = model.decode(latents, force_not_quantize=True).sample
        assert torch.allclose(decoder(codes), whole, atol=1e-6) and whole.std() > 0.1
        assert decoder.last is codec.pixel_decoder().decoder.conv_out
    names = {name.split(".")[0] for name, _ in decoder.named_parameters()}
    assert names == {"post_quant_conv", "decoder"}
    encoded = codec.encode(codec.decode(codes), 3, 4)
    stirred(decoder)
    codec.save(tmp_path)
    again = load_codec(folder, CPU)
    again.load_decoder(tmp_path)
    with torch.no_grad():
        assert torch.allclose(again.pixel_decoder()(codes), decoder(codes), atol=1e-6)
        assert not torch.allclose(decoder(codes), whole, atol=1e-3)
    pictures = load_codec(folder, CPU).decode(codes)
    assert torch.equal(again.encode(pictures, 3, 4), encoded)  # codes never change


@pytest.mark.parametrize("family", ["composite", "janus"])
def test_a_policys_pictures_are_those_of_its_decoder(painter_of, family):
    policy = painter_of(family)
    if family == "janus":
        with pytest.raises(ConfigError, match="the decoder of Janus is not trained here"):
            PictureDecoder(policy.image_model)
        return
    own = set(policy.parameters_to_train())
    decoder = PictureDecoder(policy.image_model)
    codes = torch.randint(0, policy.image_model.codes, (2, policy.codes_per_image))
    assert decoder.parameters_to_train() and set(policy.parameters_to_train()) == own
    stirred(decoder.network)
    made = decoder.decode(codes)
    assert made.requires_grad
    drawn = to_pixels(policy.image_model.decode(codes), *made.shape[2:])
    assert (drawn - made.clamp(-1, 1)).abs().max() < 1 / 127  # rounded to bytes
    picture = Image.fromarray(np.full((9, 9, 3), 255, np.uint8))
    assert decoder.pixels([picture], like=made).shape == (1, *made.shape[1:])
    assert decoder.pixels([picture], like=made).min() == 1.0


def test_trained_parts_are_loaded_by_name(painter_of, tmp_path):
    decoder = PictureDecoder(painter_of("composite").image_model)
    stirred(decoder.network)
    decoder.save(tmp_path)
    other = PictureDecoder(painter_of("composite").image_model)
    other.load(tmp_path)
    for name, parameter in decoder.parameters_to_train().items():
        assert torch.equal(parameter, other.parameters_to_train()[name])
    with pytest.raises(ConfigError, match="holds another network"):
        PictureDiscriminator(8, CPU).load(tmp_path)


def test_a_discriminator_judges_parts_of_a_picture():
    judge = PictureDiscriminator(8, CPU)
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    logits = judge.logits(pixels)
    assert logits.shape == (2, 1, 6, 6)
    assert judge.logits(torch.randn(1, 3, 32, 32)).shape == (1, 1, 2, 2)
    assert judge.lr_scale("any") == 1.0 and len(judge.parameters_to_train()) == 2 + 3 * 3 + 2
