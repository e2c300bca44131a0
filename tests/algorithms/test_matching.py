"""The matching error as a stand-in for a log-probability, and weights for it, against numbers derived by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmrl.algorithms import (
    dpo_loss,
    interpolate,
    kto_loss,
    matching_error,
    matching_log_ratio,
    nft_loss,
    reward_weights,
    weighted_error,
)
from mmrl.algorithms.forward_process import Weighting
from mmrl.checks import ShapeError

WEIGHTINGS = Weighting.__args__


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_velocity_error_by_hand():
    """v = (3, 1), noise - x0 = (1, 1) - (0, 2) = (1, -1): squares 4 and 4; in the second row 0 and 1."""
    velocity = torch.tensor([[3.0, 1.0], [0.0, 1.0]])
    clean, noise = torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    assert matching_error(velocity, clean, noise).tolist() == [4.0, 0.5]
    with pytest.raises(ShapeError, match="noise"):
        matching_error(velocity, clean, noise[:, :1])


def test_weightings_by_hand():
    error = torch.tensor([16.0], dtype=torch.float64)
    expected = {"uniform": 16, "sigma": 4, "sigma_squared": 1, "epsilon": 9, "huber": 1, "ghuber": 2}
    for weighting, value in expected.items():
        assert weighted_error(error, 0.25, weighting).item() == pytest.approx(value, abs=1e-2)
    assert set(expected) == set(WEIGHTINGS)
    with pytest.raises(ValueError, match="weighting: expected one of uniform"):
        weighted_error(error, 0.25, "cubic")
    with pytest.raises(ValueError, match="sigma: expected a number in"):
        weighted_error(error, 0.0)


def test_epsilon_and_sigma_squared_are_errors_of_noise_and_image():
    """The velocity gives both at x_t: noise = x_t + (1 - sigma) v, x0 = x_t - sigma v."""
    clean, noise, velocity = (random(4, 3, 2, seed=n) for n in range(3))
    x_t = interpolate(clean, noise, 0.3)
    error = matching_error(velocity, clean, noise)
    of_noise = ((x_t + 0.7 * velocity - noise) ** 2).mean((1, 2))
    of_picture = ((x_t - 0.3 * velocity - clean) ** 2).mean((1, 2))
    torch.testing.assert_close(weighted_error(error, 0.3, "epsilon"), of_noise)
    torch.testing.assert_close(weighted_error(error, 0.3, "sigma_squared"), of_picture)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_gradients_against_finite_differences(weighting):
    clean, noise = random(2, 3, seed=0), random(2, 3, seed=1)
    velocity = random(2, 3, seed=2).requires_grad_()
    loss = lambda v: weighted_error(matching_error(v, clean, noise), 0.4, weighting).sum()  # noqa: E731
    assert torch.autograd.gradcheck(loss, velocity)
    loss(velocity).backward()
    assert (velocity.grad != 0).all()


@pytest.mark.parametrize("weighting", ["huber", "ghuber"])
def test_root_errors_have_finite_gradients_at_zero(weighting):
    clean, noise = random(1, 3, seed=0), random(1, 3, seed=1)
    velocity = (noise - clean).requires_grad_()
    weighted_error(matching_error(velocity, clean, noise), 0.4, weighting).sum().backward()
    assert velocity.grad.isfinite().all()


def test_diffusion_dpo_equals_the_published_expression():
    """-log sigmoid(-beta / 2 [(e_w - e_l) - (ref_w - ref_l)]), written out in numpy as its authors' code has it."""
    errors = np.abs(np.random.default_rng(0).normal(size=(4, 5)))
    w, low, ref_w, ref_l = errors
    inside = -0.5 * 7.0 * ((w - low) - (ref_w - ref_l))
    expected = np.log1p(np.exp(-inside))
    now_w, now_l, before_w, before_l = (torch.tensor(each, requires_grad=True) for each in errors)
    loss = dpo_loss(matching_log_ratio(now_w, before_w), matching_log_ratio(now_l, before_l), beta=7.0)
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=1e-12)
    loss.sum().backward()
    assert (now_w.grad > 0).all() and (now_l.grad < 0).all()  # descent fits what was chosen, and unfits the other
    assert before_w.grad is None and before_l.grad is None


def test_kto_by_hand_with_gradients_for_both_signs():
    """beta = 2, log-ratios 0.5 and -1, shift 0.4: sigmoid(0.4 - 1) + sigmoid(-2 - 0.4)."""
    chosen, rejected = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (0.5, -1.0))
    loss = kto_loss(chosen, rejected, beta=2.0, shift=0.4)
    assert loss.item() == pytest.approx(1 / (1 + math.exp(0.6)) + 1 / (1 + math.exp(2.4)))
    loss.sum().backward()
    assert chosen.grad < 0 < rejected.grad
    assert torch.autograd.gradcheck(lambda c, r: kto_loss(c, r, 2.0, 0.4), (chosen, rejected))
    far = torch.tensor([-50.0], dtype=torch.float64, requires_grad=True)
    kto_loss(far, rejected.detach(), 2.0).sum().backward()
    assert abs(far.grad.item()) < 1e-10  # an answer far off its place is given up
    with pytest.raises(ValueError, match="shift: expected a number >= 0"):
        kto_loss(chosen, rejected, 2.0, -0.1)


def test_reward_weights_by_hand():
    rewards = torch.tensor([0.0, 1.0, math.nan, 5.0], dtype=torch.float64)
    groups = torch.tensor([3, 3, 3, 8])
    e2 = math.exp(2)
    assert reward_weights(rewards, groups, 0.5).tolist() == pytest.approx([1, e2, 0, math.exp(10)])
    mean = (1 + e2) / 2
    assert reward_weights(rewards, groups, 0.5, normalise=True).tolist() == pytest.approx([1 / mean, e2 / mean, 0, 1])
    shifted = reward_weights(rewards + 1e4, groups, 0.5, normalise=True)
    torch.testing.assert_close(shifted, reward_weights(rewards, groups, 0.5, normalise=True))
    with pytest.raises(ValueError, match="overflows at reward 10005"):
        reward_weights(rewards + 1e4, groups, 0.5)
    with pytest.raises(ValueError, match="temperature: expected a number > 0"):
        reward_weights(rewards, groups, 0.0)


def test_nft_without_negatives_equals_the_positive_branch():
    velocity, old, clean, noise = (random(3, 4, seed=n) for n in range(4))
    x_t, rho = interpolate(clean, noise, 0.5), torch.tensor([0.0, 0.5, 1.0]).double()
    velocity.requires_grad_()
    both = nft_loss(velocity, old, x_t, 0.5, clean, rho, 0.3)
    alone = nft_loss(velocity, old, x_t, 0.5, clean, rho, 0.3, negatives=False)
    assert alone[0] == 0 and both[0] > 0 and alone[2] == both[2] and alone[1] < both[1]
    (gradient,) = torch.autograd.grad(
        nft_loss(velocity, velocity.detach(), x_t, 0.5, clean, rho, 0.3, negatives=False).sum(), velocity
    )
    towards = noise - clean - velocity.detach()  # the average sample, rho = 1/2, attracts
    scale = (0.5 * towards).abs().mean(1, keepdim=True)
    torch.testing.assert_close(gradient, -2 * rho[:, None] * 0.25 * towards / (4 * scale))
