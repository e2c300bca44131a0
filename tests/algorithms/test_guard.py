"""GRPO-Guard's ratio: against its definition in float64, by simulation, and the plain ratio as the control."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from mmrl.algorithms import clipped_policy_loss, guarded_log_ratio

STDS = torch.tensor([0.05, 0.2, 0.8], dtype=torch.float64)
N, D = 8_000, 16


def sampled_under_the_old(moved: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """New and old log-probs [N, T], new and old means [N, T, D], and noise, where every mean has moved as far."""
    generator = torch.Generator().manual_seed(0)
    old_mean = torch.randn(N, 3, D, dtype=torch.float64, generator=generator)
    direction = torch.randn(3, D, dtype=torch.float64, generator=generator)
    mean = old_mean + moved * direction / direction.norm(dim=1, keepdim=True)
    noise = torch.randn(N, 3, D, dtype=torch.float64, generator=generator)
    x_next = old_mean + STDS[:, None] * noise
    new, old = (Normal(m, STDS[:, None]).log_prob(x_next).mean(2) for m in (mean, old_mean))
    return new, old, mean, old_mean, noise


def guarded(new: Tensor, old: Tensor, mean: Tensor, old_mean: Tensor) -> Tensor:
    return guarded_log_ratio(new, old, mean, old_mean, STDS.expand(N, 3), torch.ones(N, 3, dtype=torch.bool))


def test_guard_log_ratio_is_the_step_times_the_noise():
    """By hand: all that is left of the log-ratio is mean(d e)."""
    new, old, mean, old_mean, noise = sampled_under_the_old(0.1)
    torch.testing.assert_close(guarded(new, old, mean, old_mean), ((mean - old_mean) * noise).mean(2))


def test_guard_log_ratio_has_mean_0_and_equal_spread_per_step():
    new, old, mean, old_mean, _ = sampled_under_the_old(0.1)
    ratio, plain = guarded(new, old, mean, old_mean), new - old
    expected = 0.1 / D  # |d| / D
    assert ratio.mean(0).abs().max() < 4 * expected / N**0.5
    torch.testing.assert_close(ratio.std(0), torch.full((3,), expected, dtype=torch.float64), rtol=0.03, atol=0)
    # the control: the plain log-ratio is below 0, and 16 times as spread where there is least noise
    torch.testing.assert_close(plain.mean(0), -(0.1**2) / D / (2 * STDS**2), rtol=0.2, atol=2e-4)
    assert (plain.mean(0) < 0).all()
    assert plain.std(0)[0] / plain.std(0)[2] == pytest.approx(16, rel=0.05)


def test_guard_clips_both_signs_and_all_steps_equally():
    """Shares of clipped decisions: equal for either sign of the advantage; the plain ratio's differ by far."""
    new, old, mean, old_mean, _ = sampled_under_the_old(0.1)
    ones = torch.ones(N, 3)
    mask, bound = ones > 0, 0.1 / D

    def shares(log_ratio: Tensor, sign: float) -> Tensor:
        log_ratio = log_ratio.float()
        terms = clipped_policy_loss(log_ratio, torch.zeros_like(log_ratio), sign * ones, mask, bound, bound)
        return terms.clipped.float().mean(0)

    ratio = guarded(new, old, mean, old_mean)
    both = torch.stack([shares(ratio, 1.0), shares(ratio, -1.0)])
    assert (both - 0.159).abs().max() < 0.01  # beyond one standard deviation
    plain = torch.stack([shares(new - old, 1.0), shares(new - old, -1.0)])
    assert (plain[1] - plain[0])[0] > 0.5
    assert plain.max() - plain.min() > 0.5


def test_guard_gradients_equal_finite_differences_and_respect_the_mask():
    torch.manual_seed(0)
    x_next, old_mean = torch.randn(2, 2, 3, 4, dtype=torch.float64).unbind(0)
    mean = (old_mean + 0.1 * torch.randn_like(old_mean)).requires_grad_()
    std, mask = STDS.expand(2, 3), torch.tensor([[True, True, False], [True, False, True]])
    old = Normal(old_mean, std[..., None]).log_prob(x_next).mean(2)

    def ratio(mean: Tensor) -> Tensor:
        return guarded_log_ratio(Normal(mean, std[..., None]).log_prob(x_next).mean(2), old, mean, old_mean, std, mask)

    assert torch.autograd.gradcheck(ratio, (mean,))
    (slope,) = torch.autograd.grad(ratio(mean).sum(), mean)
    assert not slope[~mask].any() and slope[mask].abs().min() > 0
    noise = (x_next - old_mean) / std[..., None]
    torch.testing.assert_close(slope[mask], noise[mask] / 4)  # as large at each step, for any noise
