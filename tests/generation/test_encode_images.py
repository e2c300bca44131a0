"""Pictures that a policy did not draw just now: adopted latents, and pictures that are encoded into them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.generation import GenerationError, PipelinePolicy, UnsupportedError
from mmrl.policy import Capability
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "flux", "wan"])  # wan: true guidance, which is a second call
def test_encoded_rows_have_equal_velocities_alone_and_batched(name, make_policy, requests):
    policy = make_policy(name)
    assert {Capability.FROM_LATENTS, Capability.ENCODE_MEDIA} <= policy.capabilities
    rollout = policy.rollout(requests, seed=3)
    rows = [2, 0]
    alone = policy.rollout_from_latents(
        [rollout.samples[row] for row in rows], [7, 0], rollout.clean[rows], [rollout.media[row] for row in rows]
    )
    assert policy.replay_gap(alone) == 0 and alone.log_probs.shape == (2, 0)
    assert alone.group_index.tolist() == [7, 0] and torch.equal(alone.clean, rollout.clean[rows])
    noisy = torch.randn(rollout.clean.shape, generator=torch.Generator().manual_seed(0))
    for sigma in (0.05, 0.5, 0.95):
        with torch.no_grad():
            expected = policy.predict_velocity(rollout, noisy, sigma)[rows]
            torch.testing.assert_close(
                policy.predict_velocity(alone, noisy[rows], sigma), expected, rtol=1e-4, atol=1e-4
            )
            other = policy.predict_velocity(alone, noisy[rows[::-1]], sigma)
        assert not torch.allclose(other, expected, rtol=1e-2, atol=1e-2)
    assert policy.predict_velocity(alone, noisy[rows], 0.5).requires_grad


def test_latents_of_another_shape_raise(make_policy, requests):
    policy = make_policy("sd3")
    sample = requests[0].sample
    with pytest.raises(GenerationError, match=r"the latents are \[1, 4, 3, 3\], the pipeline's own are"):
        policy.rollout_from_latents([sample], [0], torch.zeros(1, 4, 3, 3), [None])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "sd15", "flux"])
def test_encoded_images_decode_by_the_arithmetic_of_the_pipeline(name, make_policy, requests):
    """Backwards as each pipeline's `__call__` goes from its loop's last latents to the autoencoder."""
    policy = make_policy(name, transition={"name": "ode"})
    pipeline, vae = policy.pipeline, policy.pipeline.vae
    rollout = policy.rollout(requests[:1], seed=3)
    size = rollout.media[0].size
    pixels = torch.rand(2, 3, size[1], size[0], generator=torch.Generator().manual_seed(0))
    pictures = [Image.fromarray((each.permute(1, 2, 0) * 255).round().byte().numpy()) for each in pixels]
    latents = policy.encode(pictures)
    assert latents.shape == rollout.clean.shape and latents.dtype == rollout.clean.dtype
    assert policy.rollout_from_latents(rollout.samples, [0, 0], latents, pictures).clean is latents
    if name == "flux":
        latents = pipeline._unpack_latents(latents, size[1], size[0], pipeline.vae_scale_factor)
    shift = getattr(vae.config, "shift_factor", None) or 0.0
    seen = torch.stack([torch.from_numpy(np.array(picture)).float() for picture in pictures])
    with torch.no_grad():
        expected = vae.encode(seen.permute(0, 3, 1, 2) / 127.5 - 1).latent_dist.mean
    torch.testing.assert_close(latents / vae.config.scaling_factor + shift, expected, rtol=1e-4, atol=1e-4)
    larger = [picture.resize((size[0] * 2, size[1] * 3)) for picture in pictures]  # scaled and cropped
    assert policy.encode(larger).shape == rollout.clean.shape


@pytest.mark.integration
def test_unsupported_latent_spaces_raise_by_class_name(make_policy):
    with pytest.raises(UnsupportedError, match="WanPipeline: existing images can be encoded for StableDiffusion"):
        make_policy("wan").encode([])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd15_pix2pix", pytest.param("sdxl_pix2pix", marks=pytest.mark.slow)])
def test_pictures_after_an_edit_are_adopted_with_the_pictures_before_it(name, tmp_path):
    policy = PipelinePolicy(tiny.build(name), tiny.sampling(name))
    samples = tiny.samples(name, tmp_path)
    media = policy.rollout([RolloutRequest(sample, 1, 0) for sample in samples], seed=3).media
    latents = policy.encode(media)
    vae, pixels = policy.pipeline.vae, np.stack([np.asarray(picture) for picture in media])
    with torch.no_grad():
        mean = vae.encode(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1).latent_dist.mean
        torch.testing.assert_close(latents, mean * vae.config.scaling_factor, rtol=1e-4, atol=1e-4)
        both = policy.predict_velocity(policy.rollout_from_latents(samples, [0, 1], latents, media), latents, 0.5)
        for row, sample in enumerate(samples):
            own = slice(row, row + 1)
            alone = policy.rollout_from_latents([sample], [0], latents[own], media[own])
            expected = policy.predict_velocity(alone, latents[own], 0.5)
            torch.testing.assert_close(both[own], expected, rtol=1e-4, atol=1e-4)
            other = policy.rollout_from_latents([samples[1 - row]], [0], latents[own], media[own])
            assert not torch.allclose(policy.predict_velocity(other, latents[own], 0.5), expected, rtol=1e-2)
