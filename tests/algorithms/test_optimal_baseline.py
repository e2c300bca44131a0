"""The baseline of least variance against exact sums over a softmax, and the signal in a gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms import (
    dr_grpo_advantages,
    kept_noise,
    optimal_baseline_advantages,
    rloo_advantages,
    signal_share,
)

NAN = math.nan


def test_by_hand():
    rewards, groups = torch.tensor([0.0, 1.0, 1.0, 8.0]), torch.tensor([3, 3, 3, 9])
    norms = torch.tensor([4.0, 1.0, 3.0, 2.0])
    whole = optimal_baseline_advantages(rewards, groups, norms, leave_one_out=False)
    torch.testing.assert_close(whole, torch.tensor([-0.5, 0.5, 0.5, 0.0]))
    alone = optimal_baseline_advantages(rewards, groups, norms)
    torch.testing.assert_close(alone, torch.tensor([-1.0, 1 - 3 / 7, 1 - 1 / 5, 0.0]))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(-3, 3))
def test_equal_norms_give_the_plain_means(seed, norm, shift):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(20, dtype=torch.float64, generator=generator)
    groups = torch.arange(20) % 4
    equal = torch.full_like(rewards, norm)
    torch.testing.assert_close(optimal_baseline_advantages(rewards, groups, equal), rloo_advantages(rewards, groups))
    whole = optimal_baseline_advantages(rewards, groups, equal, leave_one_out=False)
    torch.testing.assert_close(whole, dr_grpo_advantages(rewards, groups))
    norms = torch.rand(20, dtype=torch.float64, generator=generator)
    found = optimal_baseline_advantages(rewards, groups, norms)
    torch.testing.assert_close(optimal_baseline_advantages(rewards + shift, groups, norms * norm), found)


def softmax_case():
    """Answers with known chances, their scores (gradients of log p in the logits) and rewards; the exact gradient."""
    p = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    scores = torch.eye(4, dtype=torch.float64) - p
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    return p, scores, rewards, (p * rewards) @ scores


def variance(p, scores, rewards, baseline):
    terms = (rewards - baseline)[:, None] * scores
    return float(p @ (terms - p @ terms).square().sum(1))


def test_no_other_baseline_has_less_variance():
    """The control: the mean reward, and numbers near the weighted mean, have more; all have the same mean gradient."""
    p, scores, rewards, gradient = softmax_case()
    weights = p * scores.square().sum(1)
    best = float((weights * rewards).sum() / weights.sum())
    least = variance(p, scores, rewards, best)
    for other in (float(p @ rewards), best + 0.01, best - 0.01, 0.0):
        assert variance(p, scores, rewards, other) > least
        torch.testing.assert_close(p @ ((rewards - other)[:, None] * scores), gradient)
    assert least < 0.9 * variance(p, scores, rewards, float(p @ rewards))


def test_leaving_itself_out_has_no_bias():
    """The mean over all pairs of answers, exactly; with the own answer in the baseline it is another gradient."""
    p, scores, rewards, gradient = softmax_case()
    norms, groups = scores.square().sum(1), torch.zeros(2).long()
    found = {True: torch.zeros(4, dtype=torch.float64), False: torch.zeros(4, dtype=torch.float64)}
    for left_out, total in found.items():
        for pair in torch.cartesian_prod(torch.arange(4), torch.arange(4)):
            advantages = optimal_baseline_advantages(rewards[pair], groups, norms[pair], leave_one_out=left_out)
            total += p[pair].prod() * (advantages[:, None] * scores[pair]).mean(0)
    torch.testing.assert_close(found[True], gradient)
    assert not torch.allclose(found[False] / found[False].norm(), gradient / gradient.norm(), atol=1e-3)


def test_where_no_other_has_a_gradient_the_plain_mean_compares():
    rewards, groups = torch.tensor([0.0, 1.0, 0.5]), torch.zeros(3).long()
    found = optimal_baseline_advantages(rewards, groups, torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([-0.75, 1.0, 0.5]))


def test_unscored_rows_and_bad_norms():
    rewards, groups = torch.tensor([0.0, NAN, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    norms = torch.tensor([1.0, NAN, 3.0, NAN, NAN])
    found = optimal_baseline_advantages(rewards, groups, norms, leave_one_out=False)
    torch.testing.assert_close(found, torch.tensor([-0.75, 0.0, 0.25, 0.0, 0.0]))
    with pytest.raises(ValueError, match="squared_norms: expected finite numbers >= 0"):
        optimal_baseline_advantages(rewards, groups, -norms)


@pytest.mark.parametrize(("beta", "steps"), [(0.9, 1), (0.9, 7), (0.5, 3), (0.0, 4)])
def test_kept_noise_is_the_sum_of_squared_weights(beta, steps):
    weights = torch.tensor([beta**k for k in range(steps)], dtype=torch.float64)
    weights = weights / weights.sum()
    assert kept_noise(beta, steps) == pytest.approx(float(weights.square().sum()))


def test_the_signal_is_found_in_noise():
    """5,000 gradients of mean (1, 0, ...) with a noise of variance 9: the share is a tenth."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(5000, 4, dtype=torch.float64, generator=generator) * 1.5
    gradients[:, 0] += 1
    averages = gradients.view(500, 10, 4).mean(1)
    squared_mean, mean_square = averages.square().sum(1).mean(), gradients.square().sum(1).mean()
    assert signal_share(float(squared_mean), float(mean_square), 0.1) == pytest.approx(0.1, abs=0.02)
    assert signal_share(1.0, 1.0, 0.3) == pytest.approx(1.0)
