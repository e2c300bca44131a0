"""States of prompts as uncorrelated components of equal variance."""

from __future__ import annotations

import pytest
import torch

from mmrl.rewards.learned.feature_scale import FeatureScale, PromptComponents


def states(count=400, seed=0):
    """States with deviations 10, 1 and 0.1 along three oblique directions, and nothing along the fourth."""
    chance = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=chance, dtype=torch.float64))
    scales = torch.tensor([10.0, 1.0, 0.1, 0.0], dtype=torch.float64)
    return (torch.randn(count, 4, generator=chance, dtype=torch.float64) * scales) @ turn.T + 5, turn


def test_components_are_uncorrelated_with_equal_variance_along_the_directions_of_the_variance():
    raw, turn = states()
    components = PromptComponents.fit(raw, count=8, variance=3.0)
    assert components.basis.shape == (4, 3)  # the fourth direction has no variance
    found = components(raw)
    covariance = found.T @ found / len(found)
    torch.testing.assert_close(covariance, torch.eye(3, dtype=torch.float64), atol=1e-4, rtol=0)
    cosines = torch.nn.functional.normalize(components.basis.double(), dim=0).T @ turn[:, :3]
    assert torch.allclose(cosines.abs(), torch.eye(3, dtype=torch.float64), atol=0.05)
    larger = PromptComponents.fit(raw, count=8, variance=12.0)
    torch.testing.assert_close(larger(raw), 2 * found)
    assert PromptComponents.fit(raw, count=1).basis.shape == (4, 1)


def test_equal_states_have_no_components():
    raw = torch.full((10, 4), 3.0)
    components = PromptComponents.fit(raw, count=2)
    assert components(raw).shape == (10, 0)


def test_a_scale_divides_features_and_keeps_components_at_the_end():
    raw, _ = states()
    features = torch.cat([torch.randn(400, 3, dtype=torch.float64) * 7 + 2, torch.ones(400, 1), raw], dim=1)
    scale = FeatureScale.fit(features, 4, 8)
    found = scale(features)
    assert found.shape == (400, 7)
    torch.testing.assert_close(found.mean(0), torch.zeros(7, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[:, :3].std(0), torch.ones(3, dtype=torch.float64), atol=1e-4, rtol=0)
    assert found[:, 4:].square().mean(0).sum().item() == pytest.approx(4.0, rel=1e-4)  # that of four features
    assert (found[:, 3] == 0).all()  # a feature without spread is not divided by 0
    again = FeatureScale.from_tensors(scale.tensors())
    assert torch.equal(again(features), found)
    plain = FeatureScale.fit(features[:, :4], 4, 0)
    assert plain.prompts is None and torch.equal(plain(features[:, :4]), found[:, :4])
    assert "prompt_basis" not in plain.tensors()
