"""Latents that are denoised together count as one."""

from __future__ import annotations

import pytest
import torch

from mmrl.generation import UnsupportedError
from mmrl.generation.diffusion.recording import join, join_log_probs, shared_std, split
from mmrl.generation.diffusion.transitions import gaussian_log_prob

PICTURE, SOUND = torch.randn(2, 3, 4, 4), torch.randn(2, 5, 2)


def test_streams_are_split_into_their_shapes():
    joined = join([PICTURE, SOUND])
    assert joined.shape == (2, 3 * 4 * 4 + 5 * 2)
    for part, original in zip(split(joined, [PICTURE, SOUND]), [PICTURE, SOUND], strict=True):
        assert torch.equal(part, original)


def test_single_streams_are_unchanged():
    assert join([PICTURE]) is PICTURE
    assert split(PICTURE, [PICTURE])[0] is PICTURE


def test_stream_log_prob_is_the_mean_over_all_dimensions():
    parts = [PICTURE, SOUND]
    each = [gaussian_log_prob(part, torch.zeros_like(part), 0.7) for part in parts]
    expected = torch.distributions.Normal(0.0, 0.7).log_prob(join(parts)).mean(1)
    torch.testing.assert_close(join_log_probs(each, [48, 10]), expected)


def test_streams_with_unequal_noise_raise():
    assert shared_std([0.5, 0.5]) == 0.5
    with pytest.raises(UnsupportedError, match="different noise"):
        shared_std([0.5, 0.4])
