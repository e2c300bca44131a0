"""The road that others cross: what is blocked, what is seen, and how a car gets along."""

from __future__ import annotations

import pytest
import torch

from mmrl_shapeworld import crossing_drives as road
from mmrl_shapeworld.crossing_drives import Cars


def test_a_crossing_is_blocked_at_the_beginning_of_its_rhythm_and_nowhere_else():
    rhythms = torch.tensor([[0.0, 4.0, 0.0]]).expand(5, 3)
    places = torch.tensor([3.0, 3.3, 3.4, 6.0, 1.0])
    assert road.is_blocked(rhythms, places, 1.0).tolist() == [True, True, False, False, False]
    assert road.is_blocked(rhythms, places, 5.0).tolist() == [False, False, False, True, False]  # (4 + 5) % 8 = 1


def test_a_car_follows_a_plan_by_hand():
    """Free until moment 4.4: at full speed a car is at the first crossing between moments 2.65 and 3.35."""
    free = torch.tensor([[road.BLOCKED * road.PERIOD + 0.01, 6.0, 6.0]])
    through = Cars.at_start(free).follow(torch.ones(1, 4))
    assert through.places.tolist() == [4.0] and not through.collided.any() and through.time == 4
    stopped = Cars.at_start(torch.zeros(1, 3)).follow(torch.ones(1, 4))  # blocked until moment 3.6
    assert stopped.collided.all() and 2.65 < stopped.places.item() < 3.35
    assert torch.equal(stopped.follow(torch.ones(1, 4)).places, stopped.places)
    waits = Cars.at_start(torch.zeros(1, 3)).follow(torch.tensor([[1.0, 1.0, 0.5, 0.0, 1.0, 2.0]]))  # speeds end at 1
    assert not waits.collided.any() and waits.places.item() == pytest.approx(4.5)


def test_arrivals_need_the_whole_way_and_no_collision():
    cars = Cars(torch.zeros(3, 3), torch.tensor([11.0, 10.9, 11.5]), 20, torch.tensor([False, False, True]))
    assert cars.arrived.tolist() == [True, False, False] and cars.driving.tolist() == [False, True, False]


def test_what_is_seen_is_of_the_next_two_crossings():
    cars = Cars(torch.tensor([[2.0, 4.0, 0.0]] * 2), torch.tensor([0.0, 8.0]), 0, torch.zeros(2, dtype=torch.bool))
    first, last = cars.look()
    assert first.tolist() == pytest.approx([1.0, 1.0, 0.0, 2.0, 0.0, -1.0, 1.0, 1.0], abs=1e-6)
    assert last.tolist() == pytest.approx([1 / 3, 0.0, 1.0, 2.0, 0.0, 0.0, 3 / 11, 1.0], abs=1e-6)


def test_careful_drivers_do_better_than_careless_ones(monkeypatch):
    shares = []
    for careless in (0.0, 1.0):
        monkeypatch.setattr(road, "CARELESS", careless)
        generator = torch.Generator().manual_seed(0)
        cars = Cars.at_start(road.draw_rhythms(128, generator))
        while cars.time < road.TIME:
            cars = cars.follow(road.careless_plans(cars, generator)[:, : road.PLAN // 2])
        shares.append(cars.arrived.float().mean().item())
    assert shares[0] > 0.7 and shares[1] < 0.3


def test_a_flow_learns_to_draw_plans():
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    flow = road.PlanFlow()
    seen, plans = torch.randn(256, road.SEEN, generator=generator), torch.rand(256, road.PLAN, generator=generator)
    before = flow.matching_loss(seen, plans, generator).mean().item()
    road.imitate(flow, generator, roads=64, updates=60, batch=256)
    cars = Cars.at_start(road.draw_rhythms(64, generator))
    wanted = 2 * road.careless_plans(cars, generator) - 1
    assert flow.matching_loss(cars.look(), wanted, generator).mean().item() < 0.7 * before
    drawn = flow.plans(cars.look(), generator)
    assert drawn.shape == (64, road.PLAN) and road.speeds_of(drawn).mean() > 0.3
