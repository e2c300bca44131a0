"""The last step as a decision (`sampling.window.include_last`): short samplers explore, as in ReinFlow."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.sampling import SamplingConfig, WindowConfig, decisions_per_trajectory
from mmrl.data.sample import Sample
from mmrl.generation import PipelinePolicy
from mmrl.generation.diffusion.decisions import draw_window
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from tests.generation import tiny_pipelines as tiny

GROUP = [RolloutRequest(Sample("0", prompt="a red circle"), n=3, group=0)]
TRANSITIONS = {
    "fixed": {"name": "noisy_ode", "noise_level": 0.3},
    "sigma": {"name": "noisy_ode", "noise_level": 0.3, "learned": {"low": 0.1, "high": 0.9}},
    "latents": {"name": "noisy_ode", "noise_level": 0.3, "learned": {"low": 0.1, "high": 0.9, "inputs": "latents"}},
}


def policy_of(steps: int, kind: str) -> PipelinePolicy:
    """A tiny SD3 whose noise network, if any, does not give the same level everywhere."""
    sampling = {"steps": steps, "transition": TRANSITIONS[kind], "window": {"include_last": True}}
    policy = PipelinePolicy(tiny.build("sd3"), tiny.sampling("sd3", guidance_scale=1.0, **sampling), train="full")
    for name, parameter in policy.parameters_to_train().items():
        if name == "exploration_noise.outer.weight":
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return policy


def test_windows_with_the_last_step_hold_all_steps():
    window = WindowConfig(include_last=True)
    assert [draw_window(window, steps, seed=0) for steps in (1, 2, 4)] == [range(1), range(2), range(4)]
    late = WindowConfig(include_last=True, size=1, low=3)
    assert draw_window(late, 4, seed=0) == range(3, 4)
    for steps in (1, 2, 4):
        sampling = SamplingConfig(steps=steps, transition=TRANSITIONS["fixed"], window=window)
        assert decisions_per_trajectory(sampling) == steps


@pytest.mark.integration
@pytest.mark.parametrize("kind", TRANSITIONS)
@pytest.mark.parametrize("steps", [1, 2])
def test_every_step_is_a_decision_with_its_closed_form_density(steps, kind):
    """Log-probabilities equal torch's Gaussian in float64; the last step's mean is x - sigma v."""
    policy = policy_of(steps, kind)
    rollout = policy.rollout(GROUP, seed=4)
    assert rollout.log_probs.shape == (3, steps)
    assert policy.replay_gap(rollout) == 0
    seen = []
    policy.replay(rollout, range(steps), lambda now: seen.append(now))
    assert [now.step_indices for now in seen] == [(step,) for step in range(steps)]
    last, sigma = seen[-1], float(policy.pipeline.scheduler.sigmas[-2])
    velocity, mean = last.velocity[:, 0].detach().double(), last.mean[:, 0].detach().double()
    x = mean + sigma * velocity
    if steps == 2:
        torch.testing.assert_close(x, rollout.recording.next_latents[0][0].double(), atol=1e-5, rtol=0)
    level = torch.tensor(0.3, dtype=torch.float64)
    if kind != "fixed":
        network = policy._noise.double()
        inputs = [torch.full_like(x, sigma), x, velocity] if kind == "latents" else [torch.full_like(x, sigma)]
        hidden = torch.tanh(torch.stack(inputs, -1) @ network.inner.weight.T + network.inner.bias)
        share = (torch.tanh((hidden @ network.outer.weight.T + network.outer.bias)[..., 0]) + 1) / 2
        level = (0.1 ** (1 - share)) * 0.9**share
        assert (level.std() > 0.01) == (kind == "latents")
    density = torch.distributions.Normal(mean, level * sigma**0.5).log_prob(rollout.clean.double())
    torch.testing.assert_close(rollout.log_probs[:, -1].double(), density.flatten(1).mean(1), atol=2e-5, rtol=1e-5)
    spread = (level * sigma**0.5).log().expand_as(x).flatten(1).mean(1).exp()
    torch.testing.assert_close(last.std[:, 0].double(), spread, atol=1e-5, rtol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["sigma", "latents"])
def test_entropy_term_raises_the_noise_as_its_derivative_says(kind):
    """Without advantages, the gradient is that of the mean entropy times its weight."""
    gradients = []
    for weight in (0.0, 0.3):
        policy = policy_of(2, kind)
        rollout = policy.rollout(GROUP, seed=2)
        objective = PolicyGradient(policy, GRPOConfig(), max_decisions=2, entropy=weight)
        batch = MicroBatch.of_rows(rollout, torch.zeros(3))
        objective.backward(batch, 1.0, 0, metrics := MetricAccumulator())
        gradients.append(policy.parameters_to_train()["exploration_noise.outer.bias"].grad)
    assert not gradients[0].any()
    found: list[torch.Tensor] = []
    policy.replay(rollout, range(2), lambda now: found.append(now.std.detach()))
    spread = torch.cat(found, dim=1)
    entropy = torch.distributions.Normal(torch.zeros_like(spread), spread).entropy().mean()
    assert metrics.values()["entropy"] == pytest.approx(entropy.item(), rel=1e-5)
    assert metrics.values()["loss"] == pytest.approx(-0.3 * entropy.item(), rel=1e-4)
    bias = policy.parameters_to_train()["exploration_noise.outer.bias"]
    bias.grad = None
    policy.replay(rollout, range(2), lambda now: (-0.3 * now.std.log().sum() / 6).backward())
    torch.testing.assert_close(gradients[1], bias.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.integration
def test_noise_by_dimension_learns_from_the_reward_and_leaves_the_denoiser_alone():
    policy = policy_of(2, "latents")
    rollout = policy.rollout(GROUP, seed=2)
    policy.replay(rollout, range(2), lambda now: now.std.log().sum().backward())
    parameters = policy.parameters_to_train()
    assert (parameters["exploration_noise.inner.weight"].grad.abs().sum(0) > 0).all()
    assert all(
        parameter.grad is None or not parameter.grad.any()
        for name, parameter in parameters.items()
        if not name.startswith("exploration_noise")
    )
