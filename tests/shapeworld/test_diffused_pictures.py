"""The shipped diffusion decoder: pictures of true codes are nearly the true ones, and a run has it in its folder."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDIMScheduler, UNet2DModel
from safetensors.torch import load_file

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.generation.image_tokens.diffusion_decoder import FOLDER, DiffusionDecoder
from mmrl.generation.image_tokens.image_token_policy import ImageTokenPolicy
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.shipped_models import DIFFUSION_DECODER, IMAGE_AR
from tools.shapeworld_pretrain import diffusion_decoder as pretrain
from tools.shapeworld_pretrain.image_ar import codes_of
from tools.shapeworld_pretrain.pictures import rendered, to_pictures

CPU = torch.device("cpu")
DIFFUSED = ImageTokenConfig(
    model=str(IMAGE_AR), train="full", architecture="mmrl_shapeworld.diffused_pictures:DiffusedShapes", device="cpu"
)


def test_diffusers_loads_the_decoder_and_it_is_small():
    unet = UNet2DModel.from_pretrained(DIFFUSION_DECODER / FOLDER, torch_dtype=torch.float32)
    assert 0.3e6 < sum(p.numel() for p in unet.parameters()) < 0.5e6
    assert DDIMScheduler.from_pretrained(DIFFUSION_DECODER / FOLDER).config.prediction_type == "sample"
    files = [path for path in DIFFUSION_DECODER.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert sum(path.stat().st_size for path in files) < 1e6


@pytest.mark.integration
def test_pictures_of_true_codes_are_close_to_the_true_ones():
    """For unseen pictures. Negative controls: the pictures of other codes, and codes in other places."""
    captions, pictures = rendered(128, seed=501)
    codes = codes_of(load_file(IMAGE_AR / "patches.safetensors")["patches"], pictures).view(-1, 8, 8)
    decoder = DiffusionDecoder.from_folder(DIFFUSION_DECODER, CPU)
    made = decoder.pixels(codes)
    error = (made.clamp(-1, 1) - pictures).abs().mean() / 2
    strict = [judge(p, c).strict for p, c in zip(to_pictures(made), captions, strict=True)]
    assert error < 0.03 and sum(strict) / 128 > 0.8
    assert (made.roll(1, 0) - pictures).abs().mean() / 2 > 3 * error
    places = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    mixed = to_pictures(decoder.pixels(codes.flatten(1)[:, places].view(-1, 8, 8)))
    kept = [judge(p, c).strict for p, c in zip(mixed, captions, strict=True)]
    assert sum(kept) < sum(strict) / 2


@pytest.mark.integration
def test_a_saved_policy_has_its_own_decoder_and_draws_the_same(tmp_path):
    policy = ImageTokenPolicy.from_config(DIFFUSED, ImageTokenSamplingConfig())
    requests = [RolloutRequest(Sample("a", prompt="a red circle"), 2, 0)]
    before = policy.rollout(requests, seed=3)
    plain = ImageTokenPolicy.from_config(
        ImageTokenConfig(model=str(IMAGE_AR), device="cpu"), ImageTokenSamplingConfig()
    ).rollout(requests, seed=3)
    assert plain.token_ids == before.token_ids
    assert [p.tobytes() for p in plain.media] != [p.tobytes() for p in before.media]
    policy.save(tmp_path)
    again = ImageTokenPolicy.from_config(
        ImageTokenConfig(model=str(tmp_path), architecture=DIFFUSED.architecture, device="cpu"),
        ImageTokenSamplingConfig(),
    )
    assert [p.tobytes() for p in again.rollout(requests, seed=3).media] == [p.tobytes() for p in before.media]
    whole = ImageTokenPolicy.from_config(
        ImageTokenConfig(model=str(tmp_path), device="cpu"), ImageTokenSamplingConfig()
    )  # without the class of this package, by the folder alone
    assert [p.tobytes() for p in whole.rollout(requests, seed=3).media] == [p.tobytes() for p in before.media]


@pytest.mark.slow
def test_every_part_of_the_decoder_is_trained(tmp_path):
    """The loss moves the embeddings and the UNet, and a few steps lower the error of pictures of codes."""
    pretrain.train(tmp_path / "untaught", steps=1, examples=64)
    pretrain.train(tmp_path / "taught", steps=30, examples=64)
    (first, second) = (load_file(tmp_path / name / FOLDER / "codes.safetensors") for name in ("untaught", "taught"))
    assert not torch.equal(first["embeddings"], second["embeddings"])
    assert pretrain.skill(tmp_path / "taught", 32)[1] < 0.8 * pretrain.skill(tmp_path / "untaught", 32)[1]
