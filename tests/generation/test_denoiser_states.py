"""States of a denoiser's layers as positions of rows, and their averages."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.denoiser_states import find_modules, pooled_states, row_states
from mmrl.generation.diffusion.noise_levels import add_noise, from_flow_latents, to_flow_latents
from mmrl.generation.diffusion.scheduler_families import FlowFamily, VEFamily, VPFamily


def test_positions_are_in_the_order_of_time_height_and_width():
    tokens = torch.randn(2, 6, 5)
    assert torch.equal(row_states(tokens, 2), tokens)
    assert torch.equal(row_states((torch.randn(2, 4, 5), tokens), 2), tokens)  # the prompt has fewer positions
    video = torch.randn(2, 7, 3, 2, 2)  # [B, D, F, H, W]
    expected = video.permute(0, 2, 3, 4, 1).reshape(2, 12, 7)
    assert torch.equal(row_states(video, 2), expected)
    frames = video.transpose(1, 2).reshape(6, 7, 2, 2)  # [B F, D, H, W]
    assert torch.equal(row_states(frames, 2), expected)
    with pytest.raises(UnsupportedError, match=r"a layer gives \[2, 5\] for 2 rows"):
        row_states(torch.randn(2, 5), 2)


def test_averages_by_hand():
    """Positions 1, 2, 6: the mean 3; cos(0, pi/2, pi) = 1, 0, -1 gives -5/3; cos(0, pi, 2 pi) = 1, -1, 1 gives 5/3."""
    found = pooled_states(torch.tensor([[[1.0], [2.0], [6.0]]], dtype=torch.float64))
    assert found[0].tolist() == pytest.approx([3.0, -5 / 3, 5 / 3, math.sqrt(41 / 3 + 1e-6)], abs=1e-12)


def test_reversed_videos_differ_in_the_sign_of_the_first_wave():
    clip = torch.randn(1, 8, 5)
    there, back = pooled_states(clip), pooled_states(clip.flip(1))
    assert torch.allclose(there[:, :5], back[:, :5], atol=1e-6)
    assert torch.allclose(there[:, 5:10], -back[:, 5:10], atol=1e-6)


@pytest.mark.parametrize("family", [FlowFamily(), VPFamily(), VEFamily()])
def test_latents_of_every_family_in_the_terms_of_a_flow(family):
    clean, noise = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    share = 0.6
    x = add_noise(family, clean, noise, share)
    step = SimpleNamespace(family=family, levels=[(share, 0.0)], index=0, sample=x)
    noisy, sigma = to_flow_latents(step)
    assert torch.allclose(noisy, (1 - sigma) * clean + sigma * noise, atol=1e-12)
    assert torch.allclose(from_flow_latents(step, noisy, sigma), x, atol=1e-12)


def test_a_layer_that_does_not_exist_is_answered_with_those_that_do():
    blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])
    network = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "blocks": blocks})
    assert find_modules(network, ["blocks.1", "first"])[1] is network["first"]
    with pytest.raises(ConfigError, match=r"has no 'block.1': name one of blocks.0 to blocks.2, first"):
        find_modules(network, ["block.1"])
