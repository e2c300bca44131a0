"""Losses of reward models against closed forms, and votes on labels by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from mmrl.rewards.learned.preference_losses import (
    judge_labels,
    latent_divergence,
    preference_logits,
    preference_loss,
    score_loss,
)


def test_preference_losses_are_those_of_the_papers():
    gap = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    plain = -torch.log(1 / (1 + torch.exp(-gap)))
    assert torch.allclose(preference_loss(gap), plain)
    smooth = 0.9 * plain - 0.1 * torch.log(1 / (1 + torch.exp(gap)))
    assert torch.allclose(preference_loss(gap, smoothing=0.1), smooth)
    assert torch.allclose(preference_loss(gap, margin=0.5), preference_loss(gap - 0.5))
    assert torch.allclose(preference_loss(gap, smoothing=torch.ones(3)), preference_loss(-gap))


def test_log_odds_of_gaussian_scores_are_near_the_expected_probability():
    gap, variance = torch.tensor([1.5, -0.4]), torch.tensor([2.0, 0.5])
    nodes = torch.linspace(-8, 8, 20001, dtype=torch.float64)
    weights = torch.from_numpy(norm.pdf(nodes.numpy())) * (nodes[1] - nodes[0])
    for each, spread, found in zip(gap, variance, preference_logits(gap, variance).sigmoid(), strict=True):
        exact = ((each + spread.sqrt() * nodes).sigmoid() * weights).sum()
        assert found.item() == pytest.approx(exact.item(), abs=0.01)
    assert torch.equal(preference_logits(gap), gap)


def test_scores_that_are_not_rated_do_not_count():
    mean = torch.tensor([[1.0, 9.0], [2.0, 4.0]], requires_grad=True)
    target = torch.tensor([[3.0, torch.nan], [torch.nan, torch.nan]])
    losses = score_loss(mean, target)
    assert losses.tolist() == [2.0, 0.0]
    losses.sum().backward()
    assert mean.grad is not None and mean.grad.tolist() == [[-2.0, 0.0], [0.0, 0.0]]
    gaussian = score_loss(torch.tensor([[1.0]]), torch.tensor([[3.0]]), torch.tensor([[4.0]]))
    assert gaussian.item() == pytest.approx(-norm.logpdf(3.0, 1.0, 2.0))


def test_divergence_of_a_latent_is_that_of_torch():
    mean, log_variance = torch.randn(4, 3), torch.randn(4, 3)
    own = torch.distributions.Normal(mean, (log_variance / 2).exp())
    standard = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    expected = torch.distributions.kl_divergence(own, standard).sum(1)
    assert torch.allclose(latent_divergence(mean, log_variance), expected, atol=1e-6)


def test_a_vote_flips_what_it_contradicts_and_no_more():
    strength = torch.tensor([2.0, -1.0, 0.1, -3.0, 4.0])
    assert judge_labels(strength, flip=0.2).smoothing.tolist() == [0, 0, 0, 1, 0]
    assert judge_labels(strength, flip=0.8).smoothing.tolist() == [0, 1, 0, 1, 0]  # never one that it agrees with
    judged = judge_labels(strength, flip=0.4, drop=0.34)
    assert judged.kept.tolist() == [True, True, False, True, True]
    softened = judge_labels(strength, flip=0.4, soften=0.34, margin=2.0)
    assert softened.smoothing[2].item() == pytest.approx(1 / (1 + math.exp(0.1)))
    assert softened.margin.tolist() == [4.0, 2.0, 0.0, 6.0, 8.0]
    nothing = judge_labels(strength)
    assert not nothing.smoothing.any() and not nothing.margin.any() and nothing.kept.all()
