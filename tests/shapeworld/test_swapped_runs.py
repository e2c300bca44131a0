"""The pipeline that swaps a thing in a clip, what it was taught from, and the experiment of MoCha on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import WanVACEPipeline
from PIL import Image

from mmrl_shapeworld import swapped_runs
from mmrl_shapeworld.motion import draw_clip
from mmrl_shapeworld.scenes import Scene, draw
from mmrl_shapeworld.shipped_models import GENERATORS
from mmrl_shapeworld.swaps import Swap, sample_pair, samples
from tools.shapeworld_pretrain import swap as pretraining


@pytest.fixture(scope="module")
def pipe():
    return WanVACEPipeline.from_pretrained(GENERATORS["swap"])


@pytest.mark.integration
def test_the_autoencoder_reads_the_present_frame_alone(pipe):
    clip = torch.rand(1, 3, 5, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        latents = pipe.vae.encode(clip).latent_dist.mode()
        decoded = pipe.vae.decode(latents).sample
        for frame in range(5):
            alone = pipe.vae.encode(clip[:, :, frame : frame + 1]).latent_dist.mode()
            torch.testing.assert_close(alone, latents[:, :, frame : frame + 1], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                pipe.vae.decode(alone).sample, decoded[:, :, frame : frame + 1], rtol=1e-3, atol=1e-3
            )
        with pretraining.single_frames():
            once = pipe.vae.encode(clip[:, :, 3:4]).latent_dist.mode()
        torch.testing.assert_close(once, latents[:, :, 3:4], rtol=1e-4, atol=1e-4)


@pytest.mark.integration
@pytest.mark.parametrize("every", [False, True])
def test_pairs_are_taught_with_the_context_of_the_pipeline(pipe, every):
    swap, second = sample_pair(np.random.default_rng(910))
    masks = [Image.fromarray(mask).convert("L") for mask in swap.masks(every)]
    portrait = draw(Scene((swap.portrait,)))
    video, mask, references = pipe.preprocess_conditions(
        draw_clip(swap.source), masks, [portrait], 1, 32, 32, 5, torch.float32, "cpu"
    )
    with torch.no_grad():
        latents = pipe.prepare_video_latents(video, mask, references, None, "cpu")
        context = torch.cat([latents, pipe.prepare_masks(mask, references)], dim=1)
        pairs = pretraining.pairs_of(pipe.vae, 1, seed=0)
        clean, own = pretraining.batch_of(pairs, torch.tensor([0]), torch.tensor([every]))
    torch.testing.assert_close(own, context, rtol=1e-3, atol=1e-3)
    expected = swapped_runs.pair_rollout(swapped_runs.loaded(), swap, second).clean
    torch.testing.assert_close(clean, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_clip_has_five_frames_and_most_of_its_source(pipe):
    """Neither hopeless nor done: reinforcement has room, and something to reinforce."""
    pipe.set_progress_bar_config(disable=True)
    identity, motion, error = pretraining.skill(pipe, "swap-development", count=16)
    assert 0.2 < identity < 0.9 and motion > 0.6 and error < 0.01


@pytest.mark.slow
def test_arms_are_measured_on_the_same_swaps_and_the_start_is_the_same_for_all_seeds():
    start = swapped_runs.swapped_clips(3, "swap-development", prompts=2)
    assert start == swapped_runs.swapped_clips(4, "swap-development", prompts=2) and start["seconds"] == [0.0]
    for method in ("sft", "rl"):
        found = swapped_runs.swapped_clips(3, "swap-development", method, iterations=1, groups=1, prompts=2)
        assert found["seconds"][0] > 0 and {len(found[name]) for name in swapped_runs.MEASURES} == {2}
        more = swapped_runs.swapped_clips(3, "swap-development", method, True, iterations=1, groups=1, prompts=2)
        assert more["seconds"] == found["seconds"]  # the same trained generator
    masked = samples("swap-development-masked")[0]
    assert Swap.from_dict(masked.answer) == Swap.from_dict(samples("swap-development")[0].answer)


@pytest.mark.slow
def test_imitation_brings_the_velocity_nearer_to_a_pair(monkeypatch):
    policy, pair = swapped_runs.loaded(), sample_pair(np.random.default_rng(5))
    rollout = swapped_runs.pair_rollout(policy, *pair)
    noise = torch.randn(rollout.clean.shape, generator=torch.Generator().manual_seed(0))

    def error():
        with torch.no_grad():
            velocity = policy.predict_velocity(rollout, 0.5 * rollout.clean + 0.5 * noise, 0.5)
        return float((velocity - (noise - rollout.clean)).square().mean())

    before = error()
    monkeypatch.setattr(swapped_runs, "sample_pair", lambda rng: pair)
    swapped_runs.imitate(policy, seed=0, steps=4, lr=3e-4, pairs=2)
    assert error() < before
