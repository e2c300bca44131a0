"""The score-function gradient through log-probabilities is the gradient of expected reward.

The oracle is central finite differences of the mean reward with common random numbers: no log-probability takes part.
Estimates must lie within four standard errors of it, and the errors must be small enough to mean something.

Two facts that the tests state and use. A log-probability here is a *mean* over D latent dimensions, so the score is D
times its gradient. And the last step of a sampler adds no noise: it has no log-probability, and the estimate does not
see parameters act through it. The oracle therefore keeps them fixed there.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from mmrl.data.sample import Sample
from mmrl.generation import DDIM, ODE, DanceSDE, FlowSDE, PipelinePolicy
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny

D, N = 3, 200_000
THETA = torch.tensor([0.4, -0.3], dtype=torch.float64)
TOYS = {  # a transition, the last and deterministic one, and noise levels (sigma = 1 leaves DDIM nothing to divide by)
    "flow_sde": (FlowSDE(0.7, 0.7), ODE(), [1.0, 0.7, 0.4, 0.0]),
    "dance_sde": (DanceSDE(0.5), ODE(), [1.0, 0.7, 0.4, 0.0]),
    "ddim": (DDIM(1.0), DDIM(0.0), [0.95, 0.7, 0.4, 0.0]),
}


def velocity(theta: Tensor, x: Tensor, sigma: float) -> Tensor:
    """A model of two parameters, [2] or [N, 2]."""
    return theta[..., :1] * x + theta[..., 1:] * sigma * x.cos()


def trajectories(kind: str, theta: Tensor, noise: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the samples from noise [steps, N, D], and their rewards [N]."""
    transition, last, levels = TOYS[kind]
    path = [noise[0]]
    for step, (sigma, sigma_next) in enumerate(pairwise(levels[:-1])):
        mean, std = transition.moments(path[-1], velocity(theta, path[-1], sigma), sigma, sigma_next)
        path.append(mean + std * noise[step + 1])
    clean, _ = last.moments(path[-1], velocity(THETA, path[-1], levels[-2]), levels[-2], 0.0)
    return path, -((clean - 0.5) ** 2).sum(1)


def finite_difference(kind: str, noise: Tensor, h: float = 1e-4) -> Tensor:
    """dJ/dtheta [2] of expected reward J."""
    shifts = h * torch.eye(2, dtype=torch.float64)
    rewards = [[trajectories(kind, THETA + sign * shift, noise)[1].mean() for sign in (1, -1)] for shift in shifts]
    return torch.stack([(up - down) / (2 * h) for up, down in rewards])


@pytest.mark.parametrize("kind", TOYS)
def test_score_function_gradient_equals_finite_differences(kind):
    transition, _, levels = TOYS[kind]
    noise = torch.randn(3, N, D, dtype=torch.float64)
    path, reward = trajectories(kind, THETA, noise)
    theta = THETA.expand(N, 2).clone().requires_grad_()
    log_prob = torch.zeros(N)
    for step, (sigma, sigma_next) in enumerate(pairwise(levels[:-1])):
        mean, std = transition.moments(path[step], velocity(theta, path[step], sigma), sigma, sigma_next)
        log_prob = log_prob + transition.log_prob(path[step + 1], mean, std)
    (slopes,) = torch.autograd.grad(log_prob.sum(), theta)
    terms = (reward - reward.mean())[:, None] * slopes
    estimate, error = D * terms.mean(0), D * terms.std(0) / N**0.5

    expected = finite_difference(kind, noise)
    assert (error < 0.03 * expected.abs().max()).all()
    assert ((estimate - expected).abs() < 4 * error).all()
    assert ((terms.mean(0) - expected).abs() > 8 * error).any()  # the control: the mean's gradient is not the score


@pytest.mark.integration
def test_pipeline_gradient_equals_finite_differences():
    """The same through rollout and replay of a tiny SD3: dJ/dc where c is added to the velocity's every element."""
    policy = tiny_policy(noise_level=1.0)
    bias = policy.pipeline.transformer.proj_out.bias
    seeds = range(48)

    def estimate(seed: int) -> float:
        rollout = policy.rollout(group(32), seed)
        reward = reward_of(rollout.clean)
        advantage = (reward - reward.mean()) * 32 / 31  # the mean of the group includes each row's own reward
        bias.grad = None
        policy.replay(rollout, range(3), lambda now: (advantage * now.log_probs[:, 0]).mean().backward())
        return rollout.clean[0].numel() * bias.grad.sum().item()

    estimates = torch.tensor([estimate(seed) for seed in seeds])
    error = estimates.std() / len(seeds) ** 0.5

    def mean_reward(shift: float) -> Tensor:
        shift_all_but_the_last_step(policy.pipeline.transformer, shift)
        return torch.stack([reward_of(policy.rollout(group(32), seed).clean).mean() for seed in seeds[:4]]).mean()

    expected = (mean_reward(0.05) - mean_reward(-0.05)) / 0.1
    assert error < 0.15 * expected.abs()
    assert (estimates.mean() - expected).abs() < 4 * error
    assert (estimates.mean() / 256 - expected).abs() > 4 * error  # the control


def tiny_policy(noise_level: float) -> PipelinePolicy:
    """Four steps of an unguided SD3, so that what is added to its output is added to the velocity."""
    transition = {"name": "flow_sde", "noise_level": noise_level}
    sampling = tiny.sampling("sd3", steps=4, guidance_scale=1.0, transition=transition)
    return PipelinePolicy(tiny.build("sd3"), sampling, train="full")


def group(n: int) -> list[RolloutRequest]:
    """n rows of one prompt."""
    return [RolloutRequest(Sample("0", prompt="a red circle"), n=n, group=0)]


def reward_of(clean: Tensor) -> Tensor:
    """[B]: brightness, and a little curvature."""
    brightness = clean.mean((1, 2, 3))
    return brightness - 0.5 * brightness**2


def shift_all_but_the_last_step(transformer: nn.Module, shift: float) -> None:
    """Add `shift` to every velocity but that of the last step (the timestep says which it is)."""
    for hook in getattr(transformer, "_test_hooks", []):
        hook.remove()

    def add(module, args, kwargs, output):
        return (output[0] + (shift if kwargs["timestep"][0] > 300 else 0.0),)

    transformer._test_hooks = [transformer.register_forward_hook(add, with_kwargs=True)]
