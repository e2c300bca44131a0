"""Values of the uniformly random policy, by hand and on a tree of answers (ROVER, arXiv:2509.24981)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.random_policy_values import random_policy_loss, successor_values


def table(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_successors_by_hand():
    mask = torch.tensor([[True, True, True], [True, True, False]])
    now = torch.tensor([[-1.0, -2.0, -4.0], [-1.0, -1.5, 9.0]])
    old = torch.tensor([[-3.0, -1.0, -2.0], [-1.0, -1.0, 2.0]])
    found = successor_values(now, old, mask, 0.5)
    torch.testing.assert_close(found, torch.tensor([[-0.5, -1.0, 0.0], [-0.25, 0.0, 0.0]]))


def test_loss_by_hand():
    mask = torch.tensor([[True, True]])
    log_probs, old = torch.tensor([[-1.0, -3.0]]), torch.tensor([[-2.0, -2.0]])
    rewards, successors = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.0]])
    found = random_policy_loss(log_probs, old, rewards, successors, mask, 2.0)
    torch.testing.assert_close(found, torch.tensor([[(2 - 0.75) ** 2, (-2 - 0.5) ** 2]]))


@settings(max_examples=10)
@given(st.integers(0, 999), st.floats(0.2, 3.0))
def test_before_the_first_update_the_gradient_is_that_of_reinforce(seed, temperature):
    log_probs = table(seed, 3, 4).requires_grad_()
    rewards, mask = table(seed + 1, 3, 4), table(seed + 2, 3, 4) > -0.5
    means = table(seed + 3, 3, 4)
    successors = successor_values(means, means, mask, temperature)
    assert not successors.any()
    random_policy_loss(log_probs, log_probs.detach(), rewards, successors, mask, temperature).sum().backward()
    torch.testing.assert_close(log_probs.grad, (-2 * temperature * rewards).where(mask, 0.0))


@settings(max_examples=10)
@given(st.integers(0, 999))
def test_padding_does_not_matter(seed):
    mask = torch.tensor([[True, True, False], [True, False, False]])
    values = [table(seed + each, 2, 3) for each in range(5)]
    spoilt = [each.where(mask, torch.nan) for each in values]
    found = []
    for now, old, rewards, mean, old_mean in (values, spoilt):
        free = now.clone().requires_grad_()
        terms = random_policy_loss(free, old, rewards, successor_values(mean, old_mean, mask, 1.0), mask, 1.0)
        terms.sum().backward()
        found.append((terms.detach(), free.grad))
    torch.testing.assert_close(found[0], found[1])
    assert not found[0][0][~mask].any() and not found[0][1][~mask].any()


def test_every_part_of_the_target_moves_the_loss_and_none_has_a_gradient():
    now = table(0, 2, 3).requires_grad_()
    rewards, means = table(1, 2, 3).requires_grad_(), table(2, 2, 3).requires_grad_()
    mask = torch.ones(2, 3, dtype=torch.bool)
    successors = successor_values(means, means.detach() - 1, mask, 1.0)
    loss = random_policy_loss(now, table(3, 2, 3), rewards, successors, mask, 1.0)
    for other in (
        random_policy_loss(now, table(3, 2, 3), rewards, 0 * successors, mask, 1.0),
        random_policy_loss(now, table(3, 2, 3), 0 * rewards, successors, mask, 1.0),
        random_policy_loss(now, table(3, 2, 3), rewards, successors, mask, 2.0),
    ):
        assert not torch.allclose(loss, other)
    loss.sum().backward()
    assert now.grad.abs().max() > 0 and rewards.grad is None and means.grad is None


@pytest.mark.integration
def test_repeated_updates_find_the_values_of_a_random_policy():
    """Two tokens out of three, with one right pair: the logits converge to values by which the right token is greedy.

    All 9 answers are sampled. Old log-probabilities are those of the uniform policy, and a step has as many parameters
    as tokens, so that the errors can be made small where the sums of a distribution allow it.
    """
    answers = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    reward = ((answers[:, 0] == 1) & (answers[:, 1] == 2)).float()
    rewards = (reward - reward.mean())[:, None].expand(9, 2)
    first, second = torch.zeros(3, requires_grad=True), torch.zeros(3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    mask, old = torch.ones(9, 2, dtype=torch.bool), torch.full((9, 2), 1 / 3).log()
    for _ in range(300):
        steps = first.log_softmax(-1), second.log_softmax(-1)[answers[:, 0]]
        log_probs = torch.stack([steps[0][answers[:, 0]], steps[1].gather(1, answers[:, 1:])[:, 0]], dim=1)
        means = torch.stack([steps[0].mean().expand(9), steps[1].mean(-1)], dim=1)
        successors = successor_values(means, old, mask, 1.0)
        optimizer.zero_grad()
        random_policy_loss(log_probs, old, rewards, successors, mask, 1.0).mean().backward()
        optimizer.step()
    assert first.argmax() == 1 and second[1].argmax() == 2
    # The wrong first tokens stay equal, and so do the second tokens that never lead to a reward: nothing collapses.
    torch.testing.assert_close(first[0], first[2])
    assert second.softmax(-1).min() > 0.05


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperatures_that_cannot_be_are_refused(temperature):
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="temperature: expected a number > 0"):
        successor_values(one, one, one > 0, temperature)
    with pytest.raises(ValueError, match="temperature: expected a number > 0"):
        random_policy_loss(one, one, one, one, one > 0, temperature)
