"""Noise levels that are trained: bounds, gradients, files, and the same network in rollout and replay."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.sampling import TransitionConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.generation import CPS, DDIM, DanceSDE, FlowSDE, NoisyODE, PipelinePolicy
from mmrl.generation.diffusion.learned_noise import FILE, LearnedNoiseTransition, NoiseLevelNetwork, with_learned_noise
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny

GROUP = [RolloutRequest(Sample("0", prompt="a red circle"), n=3, group=0)]
BASES = [NoisyODE(0.3), FlowSDE(0.3, 0.9), DanceSDE(0.3), DDIM(0.3)]
LEARNED = {"name": "noisy_ode", "noise_level": 0.3, "learned": {"low": 0.1, "high": 0.9, "lr_scale": 20.0}}


def levels(low: float = 0.1, high: float = 0.9, start: float = 0.3) -> NoiseLevelNetwork:
    torch.manual_seed(0)
    return NoiseLevelNetwork(low, high, start, hidden=4)


def trained_noise(policy: PipelinePolicy) -> dict[str, torch.nn.Parameter]:
    named = policy.parameters_to_train()
    return {name: named[name] for name in named if name.startswith("exploration_noise.")}


@pytest.fixture(scope="module")
def policy() -> PipelinePolicy:
    sampling = tiny.sampling("sd3", steps=4, guidance_scale=1.0, transition=LEARNED)
    return PipelinePolicy(tiny.build("sd3"), sampling, train="full")


def test_noise_network_starts_at_its_initial_level_within_bounds():
    network, sigma = levels(), torch.linspace(0, 1, 5)
    torch.testing.assert_close(network(sigma), torch.full((5,), 0.3))
    for push, bound in ((1e3, 0.9), (-1e3, 0.1)):
        network.outer.bias.data.fill_(push)
        torch.testing.assert_close(network(sigma), torch.full((5,), bound))
    with pytest.raises(ConfigError, match="does not lie between"):
        levels(start=0.9)


@pytest.mark.parametrize("base", BASES, ids=repr)
def test_untrained_noise_equals_the_plain_transition(base):
    x, velocity = torch.randn(2, 3, 4, 2).unbind(0)
    mean, std = LearnedNoiseTransition(base, levels()).moments(x, velocity, 0.6, 0.45)
    expected_mean, expected_std = base.moments(x, velocity, 0.6, 0.45)
    torch.testing.assert_close(mean, expected_mean, atol=1e-6, rtol=1e-5)
    assert std.item() == pytest.approx(expected_std, rel=1e-5)


@pytest.mark.parametrize("base", BASES, ids=repr)
def test_log_prob_derivatives_in_the_noise_equal_finite_differences(base):
    torch.manual_seed(1)
    x, velocity, x_next = torch.randn(3, 3, 4, 2, dtype=torch.float64).unbind(0)
    network = levels().double()
    network.outer.weight.data.normal_()

    def log_prob(push: float = 0.0) -> torch.Tensor:
        network.outer.bias.data += push
        level = network(torch.tensor([0.6], dtype=torch.float64))[0]
        network.outer.bias.data -= push
        field = "eta" if isinstance(base, DDIM) else "noise_level"
        mean, std = type(base)(**{**vars(base), field: level}).moments(x, velocity, 0.6, 0.45)
        each = torch.distributions.Normal(mean, std).log_prob(x_next)  # torch's density, in float64
        return each.mean((1, 2)).sum()

    expected = (log_prob(1e-5) - log_prob(-1e-5)).item() / 2e-5
    mean, std = LearnedNoiseTransition(base, network.float()).moments(x.float(), velocity.float(), 0.6, 0.45)
    (slope,) = torch.autograd.grad(base.log_prob(x_next.float(), mean, std).sum(), network.outer.bias)
    assert abs(expected) > 1e-3
    assert slope.item() == pytest.approx(expected, rel=2e-4)


def test_rollout_and_replay_agree_and_rewards_train_the_noise(policy):
    rollout = policy.rollout(GROUP, seed=0)
    assert policy.replay_gap(rollout) == 0
    policy.replay(rollout, range(3), lambda now: now.log_probs.sum().backward())
    found = trained_noise(policy)
    assert [name.removeprefix("exploration_noise.") for name in found] == [
        "inner.weight",
        "inner.bias",
        "outer.weight",
        "outer.bias",
    ]
    bias = found["exploration_noise.outer.bias"]
    assert bias.grad.abs() > 1e-3
    assert policy.pipeline.transformer.proj_out.bias.grad.abs().max() > 0
    # the spread that a replay reports is the network's, with a graph
    seen = []
    policy.replay(rollout, [1], lambda now: seen.append(torch.autograd.grad(now.std.sum(), bias)[0]))
    assert seen[0].abs() > 0


def test_noise_gradient_through_a_pipeline_equals_finite_differences(policy):
    rollout = policy.rollout(GROUP, seed=5)
    bias = trained_noise(policy)["exploration_noise.outer.bias"]

    def total() -> float:
        parts = []
        with torch.no_grad():
            policy.replay(rollout, range(3), lambda now: parts.append(now.log_probs.double().sum()))
        return torch.stack(parts).sum().item()

    bias.grad = None
    policy.replay(rollout, range(3), lambda now: now.log_probs.sum().backward())
    slope, h = bias.grad.item(), 3e-3
    with torch.no_grad():
        bias += h
        up = total()
        bias -= 2 * h
        down = total()
        bias += h
    assert slope == pytest.approx((up - down) / (2 * h), rel=5e-3)


def test_learned_noise_is_saved_beside_the_weights(policy, tmp_path):
    assert policy.lr_scale("exploration_noise.outer.bias") == 20 and policy.lr_scale("transformer.proj_out.bias") == 1
    bias = trained_noise(policy)["exploration_noise.outer.bias"]
    with torch.no_grad():
        bias += 0.25
    expected = bias.item()
    policy.save(tmp_path)
    with torch.no_grad():
        bias -= 1.0
    policy.load(tmp_path)
    assert bias.item() == expected
    (tmp_path / FILE).unlink()
    with pytest.raises(ConfigError, match=r"trained without sampling\.transition\.learned"):
        policy.load(tmp_path)


def test_learned_noise_rejects_transitions_without_a_trainable_level():
    with pytest.raises(ConfigError, match="CPS has no noise level to train"):
        with_learned_noise(CPS(0.5), levels())
    assert NoiseLevelNetwork.from_config(TransitionConfig(name="noisy_ode")) is None
