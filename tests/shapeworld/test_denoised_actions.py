"""Actions that are denoised in an environment: what is recorded is what is replayed, and densities are densities."""

from __future__ import annotations

import math

import pytest
import torch

from mmrl.generation.diffusion.transitions import CPS, ODE, FlowSDE, NoisyODE
from mmrl_shapeworld import denoised_actions as actions
from mmrl_shapeworld.line_flow import density_gap, line_velocity, marginal_gap


def seeded(seed=0):
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def rows_of(sampler, count=16):
    generator = seeded()
    flow, transition = actions.ActionFlow(), actions.transition_of(sampler)
    return flow, transition, actions.walk(flow, transition, *actions.starts(count, generator), generator)


@pytest.mark.parametrize(("sampler", "decisions"), [("noise", 16), ("sde", 12), ("ode", 0)])
def test_a_row_has_the_decisions_of_all_moves_and_is_replayed_to_the_bit(sampler, decisions):
    flow, transition, rows = rows_of(sampler)
    assert rows.log_probs.shape == (16, actions.MOVES * actions.STEPS)
    assert (rows.log_probs != 0).sum(1).tolist() == [decisions] * 16
    assert torch.equal(actions.replayed(flow, transition, rows).detach(), rows.log_probs)
    moved = rows.latents[:, :, -1].sum(1)  # the goal is as much nearer as the point has walked
    away = rows.seen[:, 0, :2] - moved
    assert torch.equal(rows.rewards, (away.norm(dim=1) < actions.RADIUS).float())
    assert torch.allclose(rows.seen[:, -1, :2], rows.seen[:, 0, :2] - rows.latents[:, :-1, -1].sum(1), atol=1e-5)


def test_a_log_density_is_that_of_all_numbers_of_an_action():
    at = torch.zeros(3, 2)
    assert actions.log_density(NoisyODE(1.0), at, at, 1.0).tolist() == pytest.approx([-math.log(2 * math.pi)] * 3)


def test_the_gradient_reaches_the_flow_and_the_trained_noise():
    flow, transition, rows = rows_of("noise")
    (actions.replayed(flow, transition, rows) * torch.randn(16, 1)).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in flow.parameters())
    assert transition.levels.outer.weight.grad.abs().sum() > 0


def test_the_walker_turns_away_by_the_same_angle():
    seen = torch.tensor([[1.0, 0.0, 0.3, 0.3]]).expand(20_000, 4)
    mean = actions.careless_moves(seen, seeded()).mean(0)
    assert mean.tolist() == pytest.approx([math.cos(actions.TURNED), math.sin(actions.TURNED)], abs=0.01)


@pytest.mark.integration
def test_training_arrives_more_often():
    generator = seeded(3)
    flow, transition = actions.ActionFlow(), actions.transition_of("sde")
    actions.imitate(flow, generator, updates=200)
    shares = actions.reinforce(flow, transition, generator, 10, groups=16)
    assert sum(shares[-3:]) > sum(shares[:3]) + 0.1


def test_the_velocity_of_the_line_is_known_at_both_ends():
    x = torch.tensor([[-2.0], [0.0], [0.7]])
    assert torch.allclose(line_velocity(x, 1.0), x)  # noise minus the mean of the data, which is 0
    clean = line_velocity(x, 1e-4)  # of data themselves, noise is known by its mean alone
    assert torch.allclose(clean, -x, atol=1e-2)


@pytest.mark.parametrize("transition", [ODE(), NoisyODE(0.4), FlowSDE(0.5, 0.75)])
def test_densities_of_log_probabilities_are_those_of_samples(transition):
    noisy = not isinstance(transition, ODE)
    gap = density_gap(transition, lambda step: noisy and step < 3, actions.SIGMAS, seeded())
    assert sum(gap) / len(gap) < 0.005 and max(gap) < 0.04


def test_a_score_that_is_no_density_is_found_out():
    assert max(density_gap(CPS(0.5), lambda step: step < 3, actions.SIGMAS, seeded())) > 0.2


@pytest.mark.integration
def test_the_sde_keeps_the_marginals_and_plain_noise_does_not():
    generator = seeded()
    kept = marginal_gap(FlowSDE(0.5, 0.995), generator)
    assert sum(kept) / len(kept) < 0.015
    spread = marginal_gap(NoisyODE(0.5), generator)
    assert sum(spread) / len(spread) > 0.03
