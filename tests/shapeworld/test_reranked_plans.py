"""A discriminator that chooses among plans, and targets that shift the generator."""

from __future__ import annotations

import pytest
import torch

from mmrl_shapeworld import reranked_plans as plans
from mmrl_shapeworld.crossing_drives import PLAN, SEEN, Cars, PlanFlow, draw_rhythms, speeds_of


def seeded(seed=0):
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def test_choices_are_recorded_with_their_log_probabilities_and_count_while_the_car_drives():
    generator = seeded()
    flow, judge = PlanFlow(), plans.Discriminator()
    drives = plans.drive(flow, judge, draw_rhythms(6, generator), generator, hold=4)
    assert drives.candidates.shape == (6, 6, plans.CANDIDATES, PLAN)
    logs = judge(drives.seen, drives.candidates).log_softmax(-1).gather(-1, drives.chosen[..., None])[..., 0]
    assert torch.allclose(logs, drives.log_probs, atol=1e-6)
    assert drives.mask[:, 0].all() and (drives.mask.int().diff(dim=1) <= 0).all()
    assert torch.equal(drives.followed()[2, 3], drives.candidates[2, 3, drives.chosen[2, 3]])
    greedy = plans.drive(flow, judge, draw_rhythms(6, generator), generator, hold=8, greedy=True)
    best = judge(greedy.seen, greedy.candidates).argmax(-1)
    assert greedy.mask.shape == (6, 3) and torch.equal(best, greedy.chosen)
    alone = plans.drive(flow, None, draw_rhythms(6, generator), generator, hold=4)
    assert alone.candidates.shape[2] == 1 and (alone.log_probs == 0).all()


def test_what_a_plan_meets_is_what_is_seen_when_it_has_got_there():
    """At full speed for two moments, then at rest: distances shrink by 2, and rhythms go on."""
    rhythms = torch.tensor([[1.0, 6.0, 3.0]])
    cars = Cars(rhythms, torch.tensor([0.5]), 0, torch.zeros(1, dtype=torch.bool))
    plan = torch.tensor([[[1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]]])  # speeds 1, 1, 0, ...
    met = plans.met_by(cars.look(), plan)[0, 0]
    later = Cars(rhythms, torch.tensor([2.5]), 5, torch.zeros(1, dtype=torch.bool)).look()[0]
    assert met[4, 0].item() == pytest.approx(3 * later[0].item(), abs=1e-5)
    assert met[4, [1, 2, 4, 5]].tolist() == pytest.approx(later[[1, 2, 4, 5]].tolist(), abs=1e-5)
    assert plans.Discriminator()(cars.look(), plan).shape == (1, 1)


def test_targets_change_speeds_along_the_road_by_what_came_of_them():
    """Four cars of three decisions at speed 0.5: one arrives, one collides in its second plan with 2.4 to go to a
    crossing, one collides where it stands on one, one is too late. Braking leaves 2.4 - 0.35 - 0.05 = 2 of 4."""
    candidates = torch.zeros(4, 3, 1, PLAN)
    seen = torch.zeros(4, 3, SEEN)
    seen[:, :, 1] = torch.arange(4.0)[:, None]
    seen[1, :, 0] = 2.4 / 3
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False], [True, True, True]])
    arrived, collided = torch.tensor([True, False, False, False]), torch.tensor([False, True, True, False])
    drives = plans.ChosenDrives(
        seen, candidates, torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3), mask, arrived, collided
    )
    looks, targets = plans.shifted_targets(drives)
    assert looks[:, 1].tolist() == [0, 0, 0, 1, 2, 3, 3, 3]
    wanted = [0.5] * 3 + [0.25] + [0.5 * plans.FASTER] * 4
    assert speeds_of(targets).mean(1).tolist() == pytest.approx(wanted)


@pytest.mark.slow
def test_a_discriminator_learns_which_plans_arrive():
    """The flow stays as it is while the discriminator alone is trained, and changes with the shift."""
    generator = seeded(3)
    flow, judge = PlanFlow(), plans.Discriminator()
    flow.load_state_dict(plans.imitated(3).state_dict())
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    shares = plans.train_discriminator(flow, judge, generator, 12, shift=False, lr=3e-3)
    assert sum(shares[-5:]) > sum(shares[:5]) + 0.3
    assert all(torch.equal(value, before[name]) for name, value in flow.state_dict().items())
    plans.train_discriminator(flow, judge, generator, 1, shift=True)
    assert any(not torch.equal(value, before[name]) for name, value in flow.state_dict().items())


def test_decisions_without_an_advantage_or_after_the_end_are_not_replayed_and_change_no_gradient():
    """Let one group have equal outcomes, and let an episode of the other end after its first decision."""
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
    arrived, group_index = torch.tensor([True, False, True, True]), torch.tensor([0, 0, 1, 1])
    layer, counted = torch.nn.Linear(1, 8, bias=False), []
    before = layer.weight.detach().view(4, 2).clone()

    def replayed(decisions):
        counted.append(decisions)
        return layer.weight.view(4, 2)[decisions]

    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    plans.reinforce(replayed, before, mask, arrived, group_index, optimizer, layer, epochs=1)
    assert counted[0].tolist() == [[True, True], [True, False], [False, False], [False, False]]
    moved = layer.weight.detach().view(4, 2) - before  # gradients of -ratio * advantage over 7 decisions, at most 1
    wanted = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]) / 7
    assert torch.allclose(moved, wanted, atol=1e-4)


@pytest.mark.slow
def test_direct_training_changes_the_flow_and_results_have_a_value_for_each_episode():
    flow = PlanFlow()
    flow.load_state_dict(plans.imitated(3).state_dict())
    plans.train_directly(flow, seeded(), 1, groups=4)
    assert not torch.equal(flow.layers[0].weight, plans.imitated(3).layers[0].weight)
    found = plans.planned_drives(0, "imitation", repeats=2, episodes=16)
    assert len(found["success"]) == len(found["collision"]) == 32 and len(found["spread"]) == 1
    assert all(not (a and b) for a, b in zip(found["success"], found["collision"], strict=True))
