"""Advantages from values, by their definition as a sum, and the critic's loss, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.generalized_advantage import generalized_advantages, value_loss, whitened


def by_definition(rewards, values, discount, trace):
    """Return A_t = sum_l (discount * trace)^l (r_{t+l} + discount V_{t+l+1} - V_{t+l}) of one row, in float64."""
    steps = len(rewards)
    later = [*values[1:], 0.0]
    errors = [rewards[t] + discount * later[t] - values[t] for t in range(steps)]
    return [sum((discount * trace) ** (k - t) * errors[k] for k in range(t, steps)) for t in range(steps)]


@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_the_sum_of_the_definition(seed, discount, trace):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 6, generator=generator) < 0.7
    found, returns = generalized_advantages(rewards, values, mask, discount, trace)
    for row in range(3):
        own = mask[row]
        expected = by_definition(rewards[row][own].tolist(), values[row][own].tolist(), discount, trace)
        assert found[row][own].tolist() == pytest.approx(expected, abs=1e-12)
        assert (found[row][~own] == 0).all() and (returns[row][~own] == 0).all()
        torch.testing.assert_close(returns[row][own], (found + values)[row][own])


def test_a_trace_of_one_is_the_return_less_the_value_and_a_perfect_critic_leaves_nothing():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.25]], dtype=torch.float64)
    values = torch.tensor([[0.5, 0.25, 0.75], [0.0, 1.0, 0.5]], dtype=torch.float64)
    mask = torch.ones(2, 3).bool()
    found, returns = generalized_advantages(rewards, values, mask, 1.0, 1.0)
    torch.testing.assert_close(returns, rewards[:, 2:].expand(2, 3))
    torch.testing.assert_close(found, rewards[:, 2:] - values)
    perfect = rewards[:, 2:].expand(2, 3)
    for trace in (0.0, 0.5, 1.0):
        assert generalized_advantages(rewards, perfect, mask, 1.0, trace)[0].abs().max() == 0


def test_bad_settings_are_refused():
    two = torch.zeros(1, 2)
    for name, settings in (("discount", (1.5, 0.5)), ("trace", (1.0, -0.1))):
        with pytest.raises(ValueError, match=f"{name}: expected a number in"):
            generalized_advantages(two, two, two.bool(), *settings)
    with pytest.raises(ValueError, match="bool"):
        generalized_advantages(two, two, two, 1.0, 1.0)


def test_whitened_values_have_mean_0_and_deviation_1():
    values = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 7 + 3
    found = whitened(values)
    assert abs(found.mean()) < 1e-12 and found.std() == pytest.approx(1, abs=1e-8)
    assert whitened(torch.ones(3)).abs().max() == 0 and whitened(torch.ones(1)).tolist() == [0.0]


def test_the_loss_of_a_value_that_left_its_range_has_no_gradient():
    """Returns are 1. By hand: |v - 1|^2 / 2, and where v is past 0.2 of the old value, the larger of two."""
    values = torch.tensor([[0.1, 0.5, 2.0, -0.5]], requires_grad=True)
    terms = value_loss(values, torch.zeros(1, 4), torch.ones(1, 4), clip=0.2)
    # clipped to 0.1, 0.2, 0.2, -0.2: errors 0.405, 0.32, 0.32, 0.72, against 0.405, 0.125, 0.5, 1.125
    assert terms.loss.detach().tolist() == [pytest.approx([0.405, 0.32, 0.5, 1.125])]
    assert terms.clipped.tolist() == [[False, True, False, False]]
    terms.loss.sum().backward()
    assert values.grad.tolist() == [pytest.approx([-0.9, 0.0, 1.0, -1.5])]
    free = value_loss(values, torch.zeros(1, 4), torch.ones(1, 4), clip=None)
    assert free.loss.detach().tolist() == [pytest.approx([0.405, 0.125, 0.5, 1.125])] and not free.clipped.any()


def test_a_value_within_its_range_is_not_counted_as_clipped():
    """Its distance to the old value, added to that again, would often be another number: by rounding."""
    values, old, returns = torch.randn(3, 100, 10, generator=torch.Generator().manual_seed(0))
    within = (values - old).abs() < 0.19
    assert (old + (values - old) != values)[within].any()
    terms = value_loss(values, old, returns, clip=0.2)
    assert not terms.clipped[within].any()
    assert torch.equal(terms.loss[within], 0.5 * (values - returns).square()[within])
