"""Weights go to terms whose costs still change, and away from those that are saturated."""

from __future__ import annotations

import pytest

from mmrl.training.objectives.term_balance import TermSignals, VolatilityBalance, change_of


def fed(balance: VolatilityBalance, *series: list[float]) -> list[float]:
    for costs in zip(*series, strict=True):
        balance.observe(TermSignals({}, {}, dict(enumerate(costs))))
    return balance.factors(0)


def test_the_signals_by_hand():
    """Costs 5, 3, 1, 3: the later half has a mean of 2 and a deviation of 1, the earlier one a mean of 4."""
    assert change_of([5.0, 3.0, 1.0, 3.0], 0.0) == pytest.approx(2 / 4 + 1 / 6)
    assert change_of([5.0, 3.0, 1.0, 3.0], 1.0) == pytest.approx(3 / 5 + 1 / 8)
    assert change_of([4.0, 2.0], 0.0) == pytest.approx(1 / 2)
    assert change_of([1.0, 3.0, 4.0, 1.0, 3.0], 0.0) == pytest.approx(2 / (8 / 3) + 1 / (2 + 8 / 3))
    assert change_of([0.0, 0.0], 0.0) == 1.0


def test_a_forgotten_term_weighs_more_than_a_saturated_one_and_that_more_than_none():
    forgotten, steady = [0.1, 0.1, 0.4, 0.5], [0.1] * 4
    weights = fed(VolatilityBalance(2, 4, 1.0), forgotten, steady)
    assert weights[0] > 1.4 and sum(weights) == pytest.approx(2.0)
    assert fed(VolatilityBalance(2, 4, 1.0), steady, forgotten) == pytest.approx(weights[::-1])
    assert fed(VolatilityBalance(2, 4, 100.0), forgotten, steady) == pytest.approx([1.0, 1.0], abs=0.02)


def test_costs_near_zero_are_saturated_and_not_volatile():
    """A cost that fell from 1 to noise around 0.001 has relative changes of three times, which say nothing."""
    noise = [1.0] + [0.003, 0.001, 0.001, 0.003] * 2
    weights = fed(VolatilityBalance(2, 4, 1.0), noise, [0.5] * 9)
    assert weights == pytest.approx([1.0, 1.0], abs=0.02)
    assert change_of(noise[-4:], 0.0) == pytest.approx(1.25)  # the control: without the floor


def test_all_weigh_the_same_until_half_a_window_and_a_term_that_was_left_out_keeps_its_costs():
    balance = VolatilityBalance(2, 6, 1.0)
    assert fed(balance, [0.1, 0.9], [0.1, 0.1]) == [1.0, 1.0]
    assert fed(balance, [0.9], [0.1])[0] > 1.0
    before = balance.factors(0)
    balance.observe(TermSignals({}, {}, {}))
    assert balance.factors(0) == before


def test_the_state_is_the_window():
    balance = VolatilityBalance(2, 3, 0.5)
    assert balance.state_dict() == {}
    fed(balance, [0.5, 0.4, 0.1, 0.7], [0.1, 0.2, 0.3, 0.9])
    again = VolatilityBalance(2, 3, 0.5)
    again.load_state_dict(balance.state_dict())
    assert again.factors(0) == balance.factors(0)
    assert fed(again, [0.2], [0.2]) == fed(balance, [0.2], [0.2])
