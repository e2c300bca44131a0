"""The balance of imitation and reinforcement by the norm of imitation's gradient."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.training.objectives.term_balance import ImitationBalance, TermSignals


def norm(value: float) -> TermSignals:
    return TermSignals({}, {1: value, 0: 9.0}, {})


def test_the_probability_follows_the_norm_of_the_last_gradient():
    balance = ImitationBalance(gamma=1.0)
    assert balance.probability == 1.0 and balance.imitates(0)
    balance.observe(norm(2.0))
    assert balance.probability == 0.5
    balance.observe(norm(0.5))
    assert balance.probability == pytest.approx(0.5 / 2.5)
    balance.observe(norm(0.0))
    assert balance.probability == 0.0 and not balance.imitates(3)
    assert ImitationBalance(1.0).state_dict() == {}


def test_decisions_follow_from_the_seed_with_that_probability_and_are_resumed():
    balance = ImitationBalance(gamma=3.0)
    balance.observe(norm(1.0))
    drawn = [balance.imitates(seed) for seed in range(2000)]
    assert np.mean(drawn) == pytest.approx(0.25, abs=0.03)
    again = ImitationBalance(gamma=3.0)
    again.load_state_dict(balance.state_dict())
    assert again.probability == balance.probability
    assert [again.imitates(seed) for seed in range(50)] == drawn[:50]


def test_an_update_has_one_term_and_reinforcement_changes_nothing():
    balance = ImitationBalance(gamma=1.0, imitation=0)
    assert balance.factors(0) == [1.0, 0.0]
    balance.observe(TermSignals({}, {1: 5.0}, {}))
    assert balance.probability == 1.0
    balance.observe(TermSignals({}, {0: 5.0}, {}))
    balance.observe(TermSignals({}, {0: 0.0}, {}))
    assert balance.factors(0) == [0.0, 1.0]
