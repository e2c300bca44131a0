"""The Gaussian of one step: against torch.distributions, diffusers' own schedulers, and data with a known flow."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from torch.distributions import Normal

from mmrl.config.sampling import TransitionConfig
from mmrl.errors import ConfigError
from mmrl.generation.diffusion.scheduler_families import check_transition, family_of
from mmrl.generation.diffusion.transitions import CPS, DDIM, ODE, DanceSDE, FlowSDE

STOCHASTIC = [FlowSDE(0.7, 0.9), DanceSDE(0.3), DDIM(1.0), DDIM(0.5, "v_prediction")]
DATA_STD = 0.5


@pytest.mark.parametrize("transition", STOCHASTIC, ids=repr)
def test_log_prob_is_the_mean_of_the_normal_density(transition):
    x, velocity, x_next = torch.randn(3, 4, 2, 5, 5).unbind(0)
    mean, std = transition.moments(x, velocity, 0.6, 0.45)
    expected = Normal(mean, std).log_prob(x_next).mean((1, 2, 3))
    torch.testing.assert_close(transition.log_prob(x_next, mean, std), expected, atol=1e-6, rtol=1e-6)


def test_log_prob_is_float32_and_takes_a_std_per_row():
    x_next, mean, std = torch.randn(2, 8).bfloat16(), torch.randn(2, 8), torch.tensor([[0.5], [2.0]])
    log_prob = DanceSDE(0.3).log_prob(x_next, mean, std)
    assert log_prob.dtype == torch.float32
    torch.testing.assert_close(log_prob, Normal(mean, std).log_prob(x_next.float()).mean(1))


def test_cps_score_is_a_distance_without_density():
    x, velocity, x_next = torch.randn(3, 4, 2, 5).unbind(0)
    transition = CPS(0.7)
    mean, std = transition.moments(x, velocity, 0.6, 0.45)
    log_prob = transition.log_prob(x_next, mean, std)
    torch.testing.assert_close(log_prob, -((x_next - mean) ** 2).mean((1, 2)))
    assert not torch.allclose(log_prob, Normal(mean, std).log_prob(x_next).mean((1, 2)))


@pytest.mark.parametrize("transition", [FlowSDE(0.7, 0.9), DanceSDE(0.3), CPS(0.7), DDIM(1.0)], ids=repr)
def test_noise_levels_may_be_tensors(transition):
    x, velocity = torch.randn(2, 2, 3, 4).unbind(0)
    levels = torch.tensor([[0.8, 0.6], [0.5, 0.3]]).double().reshape(2, 2, 1, 1)
    mean, std = transition.moments(x.double(), velocity.double(), levels[:, 0:1, :, 0], levels[:, 1:2, :, 0])
    for row, (sigma, sigma_next) in enumerate([(0.8, 0.6), (0.5, 0.3)]):
        expected_mean, expected_std = transition.moments(x[row].double(), velocity[row].double(), sigma, sigma_next)
        torch.testing.assert_close(mean[row], expected_mean, atol=1e-6, rtol=1e-6)
        assert std[row].item() == pytest.approx(expected_std, abs=1e-6)


@pytest.mark.parametrize("transition", [FlowSDE(0.7, 0.99), DanceSDE(0.3)], ids=repr)
def test_small_steps_keep_the_marginal_distribution(transition):
    """Exact velocities on Gaussian data; a flipped drift misses by 1,000 times the tolerance."""
    sigma, dt, x = 0.6, -1e-3, torch.ones(1, dtype=torch.float64)
    mean, std = transition.moments(x, x * exact_slope(sigma), sigma, sigma + dt)
    assert mean.item() ** 2 * marginal(sigma) + std**2 == pytest.approx(marginal(sigma + dt), abs=10 * dt**2)


@pytest.mark.parametrize("noise_level", [0.7, 1.0])
@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde"])
def test_sdes_converge_to_the_data_distribution(kind, noise_level):
    def error(steps: int) -> float:
        transition = FlowSDE(noise_level, 1 - 1 / steps) if kind == "flow_sde" else DanceSDE(noise_level)
        return abs(std_at_the_end(transition, steps) / DATA_STD - 1)

    assert error(400) < 0.02
    assert error(1600) < 0.002
    assert error(10) > error(1600)


def test_cps_does_not_converge_to_the_data_distribution():
    assert std_at_the_end(CPS(0.7), 400) == pytest.approx(0.423, abs=5e-4)
    assert std_at_the_end(CPS(0.7), 1600) < 0.43


def test_flow_sde_at_sigma_one_uses_the_first_sigma_of_the_schedule():
    x, velocity = torch.randn(2, 1, 6).unbind(0)
    _, std = FlowSDE(0.7, 0.9).moments(x, velocity, 1.0, 0.9)
    assert std == pytest.approx(0.7)  # a sqrt(1 / (1 - 0.9)) sqrt(1 - 0.9)
    almost_one = 1 - 1e-6  # where UniPC begins
    assert FlowSDE(0.7, 0.9).moments(x, velocity, almost_one, 0.9)[1] == pytest.approx(std, abs=1e-5)
    assert FlowSDE(0.7, 0.99).moments(x, velocity, 1.0, 0.9)[1] > 2 * std  # another convention


@pytest.mark.parametrize("shift", [1.0, 3.0, 7.0])
@pytest.mark.parametrize("kind", [UniPCMultistepScheduler, DPMSolverMultistepScheduler])
def test_flow_sde_keeps_the_marginal_where_a_solver_begins_a_little_below_one(kind, shift):
    """Sana's DPM++ begins at 0.9997: its first step would give latents of standard deviation 25."""
    scheduler = kind(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    scheduler.set_timesteps(20)
    sigma, following = scheduler.sigmas[:2].tolist()
    x = torch.ones(1, dtype=torch.float64)
    mean, std = FlowSDE(0.7, following).moments(x, x * exact_slope(sigma), sigma, following)
    assert mean.item() ** 2 * marginal(sigma) + std**2 == pytest.approx(marginal(following), rel=0.1)
    _, each = FlowSDE(torch.tensor([0.7]), following).moments(x, x, torch.tensor([sigma]), torch.tensor([following]))
    assert each.item() == pytest.approx(std, rel=1e-5)


@pytest.mark.parametrize("transition", [FlowSDE(0.0, 0.9), DanceSDE(0.0), CPS(0.0), ODE()], ids=repr)
def test_transitions_without_noise_equal_an_euler_step(transition):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(8)
    x, sigmas = torch.randn(2, 4, 8, 8), scheduler.sigmas.tolist()
    for step, timestep in enumerate(scheduler.timesteps):
        velocity = torch.randn_like(x)
        mean, std = transition.moments(x, velocity, sigmas[step], sigmas[step + 1])
        x = scheduler.step(velocity, timestep, x).prev_sample
        assert std == 0
        torch.testing.assert_close(mean, x, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_ddim_transition_equals_the_scheduler_step(prediction, clip):
    scheduler = DDIMScheduler(prediction_type=prediction, clip_sample=clip, set_alpha_to_one=False, steps_offset=1)
    scheduler.set_timesteps(10)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.double()  # float32 loses 1e-5 of the variance's difference
    scheduler.final_alpha_cumprod = scheduler.alphas_cumprod[0]
    x, bound = torch.randn(2, 4, 8, 8, dtype=torch.float64), 1.0 if clip else None
    for timestep in scheduler.timesteps:
        output, noise = torch.randn_like(x), torch.randn_like(x)
        before = int(timestep) - 100
        sigma, sigma_next = noise_levels(scheduler, int(timestep), before)
        mean, std = DDIM(0.0, prediction, bound).moments(x, output, sigma, sigma_next)
        assert std == 0
        torch.testing.assert_close(mean, scheduler.step(output, timestep, x).prev_sample, atol=1e-9, rtol=1e-9)
        mean, std = DDIM(1.0, prediction, bound).moments(x, output, sigma, sigma_next)
        assert std**2 == pytest.approx(scheduler._get_variance(int(timestep), before).item(), rel=1e-9)
        expected = scheduler.step(output, timestep, x, eta=1.0, variance_noise=noise).prev_sample
        torch.testing.assert_close(mean + std * noise, expected, atol=1e-9, rtol=1e-9)


def noise_levels(scheduler: DDIMScheduler, timestep: int, before: int) -> tuple[float, float]:
    """sqrt(1 - alpha_bar) at a timestep and at the one that follows."""
    kept = scheduler.alphas_cumprod
    last = kept[before] if before >= 0 else scheduler.final_alpha_cumprod
    return (1 - kept[timestep].item()) ** 0.5, (1 - last.item()) ** 0.5


def marginal(sigma: float) -> float:
    """The variance of x at a noise level, for data N(0, DATA_STD²)."""
    return (1 - sigma) ** 2 * DATA_STD**2 + sigma**2


def exact_slope(sigma: float) -> float:
    """E[noise - x_0 | x] = x times this."""
    return (sigma - (1 - sigma) * DATA_STD**2) / marginal(sigma)


def std_at_the_end(transition, steps: int) -> float:
    """Standard deviation of samples with the exact velocity, by recursion: every step is linear in x, plus noise."""
    variance, x = 1.0, torch.ones(1, dtype=torch.float64)
    levels = [1 - step / steps for step in range(steps + 1)]
    for sigma, sigma_next in pairwise(levels):
        step = transition if sigma_next > 0 else ODE()
        mean, std = step.moments(x, x * exact_slope(sigma), sigma, sigma_next)
        variance = mean.item() ** 2 * variance + std**2
    return variance**0.5


@pytest.mark.parametrize(("name", "scheduler"), [("ddim", DDIMScheduler()), ("cps", FlowMatchEulerDiscreteScheduler())])
def test_more_noise_than_a_level_holds_raises(name, scheduler):
    """With eta 1.05 the root of a negative number would be complex, and its imaginary part be dropped."""
    with pytest.raises(ConfigError, match=f"1.05 is above 1, the most .*{name} takes"):
        check_transition(TransitionConfig(name=name, noise_level=1.05), family_of(scheduler))
