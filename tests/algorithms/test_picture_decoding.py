"""The losses of a decoder of image tokens, against numbers by hand and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.picture_decoding import best_of_groups, discriminator_loss, gradient_balance, realism_loss


def test_the_best_of_each_group_weigh_by_the_softmax_of_their_rewards():
    totals = torch.tensor([0.0, 2.0, 1.0, 5.0, math.nan, 3.0])
    groups = torch.tensor([4, 4, 4, 9, 9, 9])
    rows, weights = best_of_groups(totals, groups, 2, 0.5)
    assert rows.tolist() == [1, 2, 3, 5]
    first = 1 / (1 + math.exp(-1 / 0.5))  # rewards 2 and 1
    second = 1 / (1 + math.exp(-2 / 0.5))  # rewards 5 and 3
    by_hand = [first, 1 - first, second, 1 - second]
    assert weights.tolist() == pytest.approx([2 * each for each in by_hand])  # each group sums to 1, so the mean is 1/2


def test_one_picture_of_each_group_weighs_one():
    rows, weights = best_of_groups(torch.tensor([1.0, 2.0, 9.0, 3.0]), torch.tensor([0, 0, 1, 1]), 1, 1.0)
    assert rows.tolist() == [1, 2] and weights.tolist() == [1.0, 1.0]


def test_groups_with_fewer_pictures_and_without_any():
    totals = torch.tensor([1.0, math.nan, math.nan])
    rows, weights = best_of_groups(totals, torch.tensor([0, 0, 1]), 2, 1.0)
    assert rows.tolist() == [0] and weights.tolist() == [1.0]
    rows, weights = best_of_groups(totals[1:], torch.tensor([0, 1]), 2, 1.0)
    assert len(rows) == len(weights) == 0
    for best, temperature in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="expected best >= 1 and a temperature > 0"):
            best_of_groups(totals, torch.tensor([0, 0, 1]), best, temperature)


@given(st.floats(-50, 50), st.floats(0.1, 10))
def test_a_constant_for_a_prompt_changes_no_weight(shift, temperature):
    totals = torch.tensor([0.3, 0.9, 0.1, 0.5], dtype=torch.float64)
    groups = torch.tensor([0, 0, 1, 1])
    moved = totals + torch.tensor([shift, shift, 0.0, 0.0], dtype=torch.float64)
    rows, weights = best_of_groups(totals, groups, 2, temperature)
    others, same = best_of_groups(moved, groups, 2, temperature)
    assert rows.tolist() == others.tolist()
    assert torch.allclose(weights, same)


def test_groups_whose_rewards_are_far_apart_have_weights_that_sum_alike():
    totals = torch.tensor([0.0, 1.0, 5000.0, 5001.0])
    rows, weights = best_of_groups(totals, torch.tensor([0, 0, 1, 1]), 2, 1.0)
    assert weights[rows < 2].tolist() == pytest.approx(weights[rows >= 2].tolist())
    assert weights.mean().item() == pytest.approx(1.0)


def test_the_hinge_by_hand_and_its_gradient_where_it_is_flat():
    true = torch.tensor([2.0, 0.5]).view(2, 1, 1, 1).requires_grad_()
    made = torch.tensor([-2.0, 0.0, 0.5]).view(3, 1, 1, 1).requires_grad_()
    loss = discriminator_loss(true, made)
    assert loss.item() == pytest.approx(0.5 * (0.5 / 2 + 2.5 / 3))
    loss.backward()
    assert true.grad.flatten().tolist() == pytest.approx([0.0, -0.25])
    assert made.grad.flatten().tolist() == pytest.approx([0.0, 1 / 6, 1 / 6])


def test_realism_weighs_pictures_and_not_their_parts():
    logits = torch.tensor([[1.0, 3.0], [5.0, 7.0]]).view(2, 1, 1, 2)
    assert realism_loss(logits).item() == -4.0
    assert realism_loss(logits, torch.tensor([2.0, 0.0])).item() == -2.0


def test_two_losses_pull_equally_at_the_last_layer():
    layer = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    first, second = (layer**2).sum(), 0.5 * layer.sum()
    balance = gradient_balance(first, second, layer)
    lengths = [torch.autograd.grad(loss, layer)[0].norm() for loss in (first, balance * second)]
    assert lengths[0].item() == pytest.approx(10.0) and lengths[1].item() == pytest.approx(10.0, rel=3e-4)
    assert not balance.requires_grad
    flat = 0.0 * layer.sum()  # nothing to compare with: bounded
    assert gradient_balance((layer**2).sum() * 1e6, flat, layer).item() == 1e4
