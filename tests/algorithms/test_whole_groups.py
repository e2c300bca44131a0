"""Losses on all answers to a prompt: P3O's pairs and PACS's prediction of outcomes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from mmrl.algorithms import outcome_prediction_loss, pairwise_policy_loss, rloo_advantages

GROUPS = torch.tensor([0, 1, 0, 1, 0, 1, 0])


def drawn(seed: int, rows: int = 7):
    generator = torch.Generator().manual_seed(seed)
    log_ratio = 0.3 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return log_ratio.requires_grad_(), torch.randn(rows, generator=generator, dtype=torch.float64)


def gradient(loss, log_ratio):
    (found,) = torch.autograd.grad(loss.sum(), log_ratio)
    return found


# P3O ------------------------------------------------------------------------------------------------------------------


def test_pairs_by_hand():
    """Ratios 1.5 and 0.5 of answers with rewards 3 and 1, clipped at 0.2: -1.2 * 2, and -min(0.5, 0.8) * -2 = 1.6."""
    log_ratio = torch.tensor([1.5, 0.5]).log()
    got = pairwise_policy_loss(log_ratio, torch.tensor([3.0, 1.0]), torch.tensor([4, 4]), 0.2)
    torch.testing.assert_close(got, torch.tensor([-2.4, 1.6]))


def test_a_row_is_the_mean_over_its_pairs():
    """Rewards 0, 1, 3 at ratio 1: minus the mean difference from the two others."""
    got = pairwise_policy_loss(torch.zeros(3), torch.tensor([0.0, 1.0, 3.0]), torch.zeros(3, dtype=torch.long), 0.2)
    torch.testing.assert_close(got, torch.tensor([2.0, 0.5, -2.5]))


@given(st.integers(0, 1000))
def test_before_an_update_its_gradient_is_that_of_rloo(seed):
    _, rewards = drawn(seed)
    log_ratio = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    got = gradient(pairwise_policy_loss(log_ratio, rewards, GROUPS, 0.2), log_ratio)
    torch.testing.assert_close(got, -rloo_advantages(rewards, GROUPS))


@given(st.integers(0, 1000), st.floats(-100, 100), st.floats(-100, 100))
def test_a_constant_for_each_prompt_changes_nothing(seed, first, second):
    log_ratio, rewards = drawn(seed)
    moved = rewards + torch.tensor([first, second], dtype=torch.float64)[GROUPS]
    before = gradient(pairwise_policy_loss(log_ratio, rewards, GROUPS, 0.2), log_ratio)
    after = gradient(pairwise_policy_loss(log_ratio, moved, GROUPS, 0.2), log_ratio)
    torch.testing.assert_close(before, after, rtol=0, atol=1e-11)
    if abs(first) > 1:  # control: rewards that are not compared
        alone = gradient(-log_ratio.exp() * rewards, log_ratio) - gradient(-log_ratio.exp() * moved, log_ratio)
        assert alone.abs().max() > 0.1


def test_each_pair_has_its_own_clip():
    """An answer in the middle, now too likely, no longer gains on the worse one and is still lowered by the better."""
    log_ratio = torch.tensor([0.0, math.log(1.5), 0.0], requires_grad=True)
    rewards = torch.tensor([0.0, 1.0, 5.0])
    found = gradient(pairwise_policy_loss(log_ratio, rewards, torch.zeros(3, dtype=torch.long), 0.2), log_ratio)
    assert found[1].item() == pytest.approx(1.5 * 4 / 2)  # the pair with reward 0 is clipped: no share of it


# PACS -----------------------------------------------------------------------------------------------------------------


def test_prediction_by_hand():
    """Scores 2, 0 and -1: logits 2.5, -0.5 and -2; one of three is right, so weights are 3/2 and 3/4."""
    got = outcome_prediction_loss(
        torch.tensor([1.0, 0.0, -0.5]), torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3, dtype=torch.long), beta=2.0
    )
    logits = torch.tensor([2.5, -0.5, -2.0])
    expected = torch.stack(
        [-1.5 * logsigmoid(logits[0]), -0.75 * logsigmoid(-logits[1]), -0.75 * logsigmoid(-logits[2])]
    )
    torch.testing.assert_close(got, expected)


def test_groups_of_one_kind_weigh_one():
    got = outcome_prediction_loss(torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.long), beta=1.0)
    torch.testing.assert_close(got, torch.full((2,), math.log(2)))


def test_such_groups_teach_nothing_before_an_update():
    log_ratio = torch.zeros(3, requires_grad=True)
    loss = outcome_prediction_loss(log_ratio, torch.ones(3), torch.zeros(3, dtype=torch.long), beta=1.0)
    torch.testing.assert_close(gradient(loss, log_ratio), torch.zeros(3))


@given(st.integers(0, 1000), st.floats(-3, 3))
def test_only_differences_within_a_group_count(seed, shift):
    log_ratio, rewards = drawn(seed)
    right = (rewards > 0).double()
    moved = log_ratio + torch.tensor([shift, -shift], dtype=torch.float64)[GROUPS]
    torch.testing.assert_close(
        outcome_prediction_loss(log_ratio, right, GROUPS, 0.7), outcome_prediction_loss(moved, right, GROUPS, 0.7)
    )


def test_balance_makes_both_sides_weigh_alike():
    """Seven wrong answers of eight: the pull on the one right answer equals that on all wrong ones together."""
    log_ratio = torch.zeros(8, requires_grad=True)
    right = torch.tensor([1.0, *[0.0] * 7])
    groups = torch.zeros(8, dtype=torch.long)
    even = outcome_prediction_loss(log_ratio, right, groups, 1.0)
    assert even[0].item() == pytest.approx(even[1:].sum().item())
    plain = outcome_prediction_loss(log_ratio, right, groups, 1.0, balanced=False)
    assert plain[0].item() == pytest.approx(plain[1].item())


# Both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        lambda log_ratio, values, groups: pairwise_policy_loss(log_ratio, values, groups, 0.2),
        lambda log_ratio, values, groups: outcome_prediction_loss(log_ratio, values, groups, 1.0),
    ],
    ids=["p3o", "pacs"],
)
class TestUnscoredRows:
    def test_they_change_nothing(self, loss):
        log_ratio = torch.tensor([0.1, -0.2, 9.0, 0.3], requires_grad=True)
        values, groups = torch.tensor([1.0, 0.0, math.nan, 1.0]), torch.tensor([0, 0, 0, 0])
        with_unscored = loss(log_ratio, values, groups)
        kept = torch.tensor([0, 1, 3])
        torch.testing.assert_close(with_unscored[kept], loss(log_ratio[kept], values[kept], groups[kept]))
        assert with_unscored[2] == 0
        assert gradient(loss(log_ratio, values, groups), log_ratio)[2] == 0

    def test_a_row_alone_in_its_group_has_no_loss(self, loss):
        log_ratio = torch.tensor([0.1, -0.2, 0.3], requires_grad=True)
        terms = loss(log_ratio, torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 5]))
        assert terms[2] == 0
        assert gradient(terms, log_ratio)[2] == 0


def test_wrong_settings_are_refused():
    zeros, groups = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="clip: expected a number > 0, got 0"):
        pairwise_policy_loss(zeros, zeros, groups, 0)
    with pytest.raises(ValueError, match="beta: expected a number > 0, got -1"):
        outcome_prediction_loss(zeros, zeros, groups, -1)
    with pytest.raises(ValueError, match=r"right: expected 0 and 1, got \[0.5"):
        outcome_prediction_loss(zeros, zeros + 0.5, groups, 1.0)
