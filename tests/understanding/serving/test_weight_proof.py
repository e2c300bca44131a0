"""The proof of weights: its share in closed form, its errors under noise, and the causes that it names."""

from __future__ import annotations

import pytest
import torch

from mmrl.understanding.serving.weight_proof import LEAST_SHARE, MAX_PROBE_GAP, NOISE, agreement, complaint

TOKENS = 200


def scores(seed=0, by=0.1):
    """Log-probabilities of the base model, and what training added to them."""
    generator = torch.Generator().manual_seed(seed)
    base = -torch.rand(TOKENS, generator=generator, dtype=torch.float64) * 5
    return base, by * torch.randn(TOKENS, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 1.5])
def test_the_share_is_the_part_of_the_update_that_the_server_has(share):
    base, update = scores()
    found = agreement(base + share * update, base + update, base, noise=1e-5)
    assert found.share == pytest.approx(share, abs=1e-9)
    assert found.mean == pytest.approx(abs(1 - share) * update.abs().mean().item(), rel=1e-6, abs=1e-12)
    assert found.largest == pytest.approx(abs(1 - share) * update.abs().max().item(), rel=1e-6, abs=1e-12)
    assert found.moved == pytest.approx(update.abs().mean().item(), rel=1e-6)


def test_an_update_below_the_noise_has_no_share():
    base, update = scores(by=1e-6)
    found = agreement(base, base + update, base, noise=NOISE["float32"])
    assert found.share is None
    assert complaint(found, MAX_PROBE_GAP["float32"], None) is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_stale_servers_are_refused_and_true_ones_accepted_where_the_update_just_stands_out(precision):
    """The update is far below the bound, and the server's noise as large as is ascribed to it."""
    noise, wrong = NOISE[precision], 0
    for seed in range(400):
        base, update = scores(seed)
        update = update * (6.5 * noise / update.norm())
        generator = torch.Generator().manual_seed(10_000 + seed)
        kernels = noise * torch.randn(TOKENS, generator=generator, dtype=torch.float64)
        for share, refused in ((1.0, False), (0.0, True)):
            found = agreement(base + share * update + kernels, base + update, base, noise)
            assert found.share is not None and found.mean <= MAX_PROBE_GAP[precision]
            wrong += (complaint(found, MAX_PROBE_GAP[precision], None) is not None) is not refused
    assert wrong / 800 < 0.01  # three standard deviations to either side


def test_the_causes_are_named():
    base, update = scores()
    bound = 1e-4

    def text(server, moved=1.0, raw=None):
        return complaint(agreement(server, base + moved * update, base, 1e-5), bound, raw)

    assert text(base + update) is None
    assert "computes as the base model does" in text(base)
    assert "processed_logprobs" in text(base + 0.5, raw=1e-3)
    assert "another model or revision" in text(base + 0.5, moved=0.0)
    assert "A part of the update did not arrive" in text(base + (LEAST_SHARE + 0.2) * update)
    broken = base.clone()
    broken[3] = torch.nan
    assert text(broken) is not None
