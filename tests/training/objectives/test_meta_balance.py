"""The weight of imitation follows the derivative of the next reward through one update."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmrl.training.objectives.term_balance import MetaGradientBalance, TermSignals

SETTINGS = {"start": 0.5, "rate": 0.1, "entropy_rate": 0.0, "entropy": None, "least": 0.05, "most": 0.95}
GOAL, TAUGHT = torch.tensor([1.0, -2.0, 0.5]).double(), torch.tensor([0.5, 3.0, 0.0]).double()


def balance(**changes) -> MetaGradientBalance:
    return MetaGradientBalance(1, **(SETTINGS | changes))


def signals(theta: Tensor, entropy: float | None = None) -> TermSignals:
    """The reward is -|theta - GOAL|^2 / 2, and the loss of imitation |theta - TAUGHT|^2 / 2."""
    return TermSignals({0: [theta - GOAL], 1: [theta - TAUGHT]}, {}, {}, entropy)


def after(theta: Tensor, mu: float, lr: float) -> Tensor:
    return theta - lr * ((1 - mu) * (theta - GOAL) + mu * (theta - TAUGHT))


@pytest.mark.parametrize("theta", [[0.0, 0.0, 0.0], [5.0, 3.0, 1.0], [1.0, -2.0, 0.4]])
def test_the_step_has_the_sign_of_the_derivative_by_finite_differences(theta):
    start, lr, h = torch.tensor(theta).double(), 1e-3, 1e-4

    def reward(mu: float) -> float:
        return -0.5 * float((after(start, mu, lr) - GOAL).square().sum())

    derivative = (reward(0.5 + h) - reward(0.5 - h)) / (2 * h)
    rule = balance()
    rule.observe(signals(start))
    assert rule.mu == 0.5  # nothing is known yet
    then = after(start, 0.5, lr)
    rule.observe(signals(then))
    difference = GOAL - TAUGHT  # g_sft - g_rl
    inner = float((then - GOAL) @ difference)
    assert derivative == pytest.approx(lr * inner, rel=1e-3)
    cosine = inner / float((then - GOAL).norm() * difference.norm())
    assert rule.mu == pytest.approx(0.5 + 0.1 * cosine)


def test_imitation_that_helps_gains_weight_and_one_that_misleads_loses_it():
    """The control: with the demonstrations at the goal mu rises, and on the other side of theta it falls."""
    theta = torch.zeros(3).double()
    found = []
    for taught in (2 * GOAL, -GOAL):
        rule = balance()
        for _ in range(2):
            rule.observe(TermSignals({0: [theta - GOAL], 1: [theta - taught]}, {}, {}))
        found.append(rule.mu)
    assert found[0] > 0.55 and found[1] < 0.45


def test_low_entropy_brings_imitation_back_within_bounds():
    rule = balance(rate=0.0, entropy_rate=0.2)
    rule.observe(signals(GOAL, 1.0))
    assert rule.mu == 0.5  # the first one is the target
    rule.observe(signals(GOAL, 0.5))
    assert rule.mu == pytest.approx(0.6)
    for _ in range(9):
        rule.observe(signals(GOAL, 0.0))
    assert rule.mu == 0.95 and rule.factors(0) == pytest.approx([0.05, 0.95])
    for _ in range(20):
        rule.observe(signals(GOAL, 3.0))
    assert rule.mu == 0.05


def test_parts_without_a_gradient_count_as_zero_and_the_state_is_whole():
    rule = balance(entropy_rate=0.1)
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    rule.observe(TermSignals({0: [one, None, None], 1: [None, two, None]}, {}, {}, 0.7))
    again = balance(entropy_rate=0.1)
    again.load_state_dict(rule.state_dict())
    for each in (rule, again):
        each.observe(TermSignals({0: [one, None, None], 1: [None, two, None]}, {}, {}, 0.6))
    cosine = -5 / (5**0.5 * 14**0.5)
    assert rule.mu == again.mu == pytest.approx(0.5 + 0.1 * cosine + 0.1 * 0.1)
    empty = balance()
    empty.load_state_dict({})
    assert empty.mu == 0.5
    first = balance()
    first.load_state_dict(balance().state_dict())
    first.observe(signals(GOAL + 1, None))
    assert first.mu == 0.5
