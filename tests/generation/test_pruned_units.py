"""Removed units compute what closed gates compute, and gates close on units that pictures do not need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers.models.attention import FeedForward
from hypothesis import given
from hypothesis import strategies as st

from mmrl.errors import ConfigError
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.diffusion.pruned_units import (
    GateSettings,
    HiddenUnitGates,
    feed_forwards,
    learn_gates,
    most_important,
    remove_hidden_units,
    weight_norms,
)
from mmrl.policy import BackpropSteps

ODE: dict[str, Any] = {"transition": {"name": "ode"}, "guidance_scale": 1.0, "steps": 3}


def denoiser_of(policy: Any) -> torch.nn.Module:
    (found,) = find_denoisers(policy.pipeline).values()
    return found


def pixels(policy: Any, requests: Any) -> torch.Tensor:
    with policy.keep_latents(), torch.no_grad():
        return policy.decode_with_grad(policy.rollout(requests, 3), BackpropSteps())


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "sd15"])  # GELU, and GEGLU, whose two halves lose the same units
def test_removed_units_are_closed_gates(name, make_policy, requests):
    policy = make_policy(name, **ODE)
    denoiser = denoiser_of(policy)
    gates = HiddenUnitGates(denoiser)
    kept = most_important({layer: torch.rand(each.shape) for layer, each in weight_norms(denoiser).items()}, 0.6)
    with torch.no_grad():
        for path, units in kept.items():
            gates.logits[path.replace(".", "/")].fill_(-50.0)[units] = 50.0
    gates.draw(torch.Generator().manual_seed(0))
    whole = pixels(policy, requests)
    with gates.applied():
        closed = pixels(policy, requests)
    assert torch.equal(pixels(policy, requests), whole) and gates.kept(0.6) == kept
    before = sum(each.numel() for each in denoiser.parameters())
    lost = remove_hidden_units(denoiser, kept)
    assert lost == before - sum(each.numel() for each in denoiser.parameters()) > 0
    torch.testing.assert_close(pixels(policy, requests), closed, atol=1e-5, rtol=0)
    assert (closed - whole).abs().max() > 1e-3


@pytest.mark.integration
def test_gates_close_on_units_that_no_picture_needs(make_policy, requests):
    policy = make_policy("sd3", **ODE)
    denoiser = denoiser_of(policy)
    layers = feed_forwards(denoiser)
    with torch.no_grad():
        for layer in layers.values():  # every second unit reaches nothing, and the others matter
            layer.net[-1].weight[:, 1::2] = 0.0
            layer.net[-1].weight[:, ::2] *= 20.0
    weights = {name: each.clone() for name, each in denoiser.state_dict().items()}
    gates = HiddenUnitGates(denoiser, start=1.0)
    settings = GateSettings(updates=25, rows=2, lr=0.2, sparsity=0.001, seed=1)
    losses = learn_gates(policy, gates, [each.sample for each in requests], settings)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) and all(map(np.isfinite, losses))
    unneeded = torch.cat([each[1::2] for each in gates.logits.values()])
    useful = torch.cat([each[::2] for each in gates.logits.values()])
    assert unneeded.max() < -3 and unneeded.std() < 0.01  # nothing holds these open
    assert useful.mean() > 0 and useful.std() > 0.5
    assert all(torch.equal(each, weights[name]) for name, each in denoiser.state_dict().items())
    assert not any(layer.net[-1]._forward_pre_hooks for layer in layers.values())


def test_the_open_share_is_the_expectation_of_drawn_gates():
    layer = torch.nn.Sequential(FeedForward(2, inner_dim=3, activation_fn="gelu"))
    gates = HiddenUnitGates(layer)
    with torch.no_grad():
        gates.logits["0"].copy_(torch.tensor([-1.5, 0.0, 1.0]))
    generator, opened = torch.Generator().manual_seed(0), torch.zeros(3)
    for _ in range(4000):
        gates.draw(generator)
        opened += gates._drawn["0"] > 0
    assert (opened / 4000).mean().item() == pytest.approx(gates.open_share().item(), abs=0.01)
    (gradient,) = torch.autograd.grad(gates.open_share(), [gates.logits["0"]])
    assert bool((gradient > 0).all())


def test_magnitudes_by_hand():
    layer = FeedForward(2, inner_dim=2, activation_fn="geglu", bias=False)
    with torch.no_grad():
        layer.net[0].proj.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
        layer.net[2].weight.copy_(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
    # unit 0: rows 0 and 2, norm sqrt(1 + 4 + 4) = 3, column norm 5; unit 1: rows 1 and 3, norm 3, column norm 1
    torch.testing.assert_close(weight_norms(torch.nn.Sequential(layer))["0"], torch.tensor([15.0, 3.0]))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.floats(0.05, 1.0), st.integers(0, 99))
def test_the_most_important_units_are_that_share_and_at_least_one_a_layer(widths, share, seed):
    generator = torch.Generator().manual_seed(seed)
    importance = {str(n): torch.rand(width, generator=generator) for n, width in enumerate(widths)}
    kept = most_important(importance, share)
    wanted = max(1, round(share * sum(widths)))
    assert wanted <= sum(map(len, kept.values())) <= wanted + len(widths) - 1 and all(kept.values())
    chosen = torch.cat([importance[name][units] for name, units in kept.items() if len(units) > 1] or [torch.ones(1)])
    left = [value for name, each in importance.items() for n, value in enumerate(each) if n not in kept[name]]
    assert not left or chosen.min() >= max(left)


def test_wrong_units_and_denoisers_are_named():
    model = torch.nn.Sequential(FeedForward(2, inner_dim=4))
    with pytest.raises(ConfigError, match=r"no FeedForward layer of diffusers"):
        HiddenUnitGates(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"no feed-forward layer 1: it has \['0'\]"):
        remove_hidden_units(model, {"1": [0]})
    for units in ([], [4], [-1]):
        with pytest.raises(ConfigError, match="0: expected numbers of its 4 hidden units"):
            remove_hidden_units(model, {"0": units})
    with pytest.raises(ValueError, match="share"):
        most_important({"0": torch.ones(2)}, 0.0)
