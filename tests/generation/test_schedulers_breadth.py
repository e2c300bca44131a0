"""Every covered scheduler of models that predict noise: its steps against diffusers' own, and replays of SD 1.5."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from mmrl.config.policy import LoraConfig
from mmrl.config.sampling import TransitionConfig
from mmrl.generation import PipelinePolicy
from mmrl.generation.diffusion.scheduler_families import family_of, make_transition
from mmrl.generation.diffusion.scheduler_hook import SchedulerStep, intercept_scheduler
from tests.generation import tiny_pipelines as tiny

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
V = {"prediction_type": "v_prediction"}
KARRAS = {"use_karras_sigmas": True}
FIRST_ORDER = {"solver_order": 1}
DDIM, ANCESTRAL, NATIVE = (
    {"name": "ddim", "noise_level": 0.0},
    {"name": "ddim", "noise_level": 1.0},
    {"name": "native"},
)
STEPS = 6

# numpy is handed tensors by the schedules of DPM++ and its kin
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def make(name: str, **settings: Any) -> Any:
    return getattr(diffusers, name)(**BETAS, **settings)


class Walk:
    """Takes every step by a transition, with given noise, and keeps what it came from."""

    def __init__(self, transition: dict[str, Any]) -> None:
        self.config = TransitionConfig(**transition)
        self.random = torch.Generator().manual_seed(1)
        self.samples: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.moments: list[tuple[Tensor, float]] = []

    def on_schedule(self, scheduler: Any, family: Any) -> None:
        """Nothing."""

    def on_step(self, step: SchedulerStep) -> Tensor:
        transition = make_transition(self.config, step.family, step.scheduler, step.levels)
        mean, std = step.family.moments(transition, step)
        self.samples.append(step.sample)
        self.outputs.append(step.output)
        self.moments.append((mean, float(std)))
        return mean + std * torch.randn(mean.shape, generator=self.random)


def walk(scheduler: Any, transition: dict[str, Any], **step_arguments: Any) -> Walk:
    """A rollout of random model outputs."""
    random = torch.Generator().manual_seed(0)
    watcher = Walk(transition)
    with intercept_scheduler(scheduler, watcher):
        begin(scheduler)
        x = torch.randn(2, 4, 4, 4, generator=random) * scheduler.init_noise_sigma
        for timestep in scheduler.timesteps[:STEPS]:
            output = torch.randn(x.shape, generator=random)
            x = scheduler.step(output, timestep, x, **step_arguments).prev_sample
    assert len(watcher.moments) == STEPS
    return watcher


def begin(scheduler: Any) -> None:
    scheduler.set_timesteps(STEPS)
    scheduler.is_scale_input_called = True  # LMS warns where the model's input was not scaled: there is no model here


def own_steps(scheduler: Any, walked: Walk, **step_arguments: Any) -> list[Tensor]:
    """Return the results of a plain scheduler for the same samples and outputs."""
    begin(scheduler)
    steps = zip(scheduler.timesteps, walked.outputs, walked.samples, strict=False)
    return [scheduler.step(output, t, x, **step_arguments, return_dict=False)[0] for t, output, x in steps]


@pytest.mark.parametrize(
    ("name", "settings", "arguments"),
    [
        ("DDIMScheduler", {"clip_sample": False}, {}),
        ("DDIMScheduler", {"clip_sample": False, "rescale_betas_zero_snr": True, **V}, {}),
        ("CogVideoXDDIMScheduler", {"rescale_betas_zero_snr": True, **V}, {}),
        ("EulerDiscreteScheduler", {}, {}),
        ("EulerDiscreteScheduler", {"timestep_spacing": "leading", "steps_offset": 1, **V}, {}),
        ("EulerDiscreteScheduler", KARRAS, {}),
        ("EulerDiscreteScheduler", {"prediction_type": "sample"}, {}),
        ("LMSDiscreteScheduler", {}, {"order": 1}),
        ("LMSDiscreteScheduler", {**KARRAS, **V}, {"order": 1}),
        ("DPMSolverMultistepScheduler", FIRST_ORDER, {}),
        ("DPMSolverMultistepScheduler", {**FIRST_ORDER, **KARRAS, **V}, {}),
        ("DPMSolverMultistepScheduler", {**FIRST_ORDER, "timestep_spacing": "trailing"}, {}),
        ("UniPCMultistepScheduler", {**FIRST_ORDER, "disable_corrector": list(range(STEPS))}, {}),
        ("UniPCMultistepScheduler", {**FIRST_ORDER, "disable_corrector": list(range(STEPS)), **KARRAS, **V}, {}),
        ("DEISMultistepScheduler", FIRST_ORDER, {}),
    ],
)
def test_step_without_noise_equals_the_scheduler_step(name, settings, arguments):
    """Multistep solvers are compared in their first order."""
    walked = walk(make(name, **settings), DDIM)
    for (mean, std), expected in zip(
        walked.moments, own_steps(make(name, **settings), walked, **arguments), strict=True
    ):
        assert std == 0
        close(mean, expected)


@pytest.mark.parametrize(
    ("name", "settings", "native", "own"),
    [
        ("EulerDiscreteScheduler", {}, "EulerAncestralDiscreteScheduler", {}),
        ("EulerDiscreteScheduler", V, "EulerAncestralDiscreteScheduler", V),
        ("DDIMScheduler", {"clip_sample": False}, "DDPMScheduler", {"clip_sample": False}),
        ("DDIMScheduler", {"clip_sample": False, **V}, "DDPMScheduler", {"clip_sample": False, **V}),
    ],
)
def test_ddim_with_eta_1_equals_the_ancestral_step(name, settings, native, own):
    """Two ways to one Gaussian: the formula here, and the moments that diffusers' own step is native_moments for."""
    walked = walk(make(name, **settings), ANCESTRAL)
    native_moments = ask(make(native, **own), walked)
    for (mean, std), (expected_mean, expected_std) in zip(walked.moments, native_moments, strict=True):
        assert std == pytest.approx(expected_std, rel=1e-3, abs=1e-6)
        close(mean, expected_mean)
    assert all(std > 0 for _, std in native_moments[:-1])


@pytest.mark.parametrize("settings", [{}, V, KARRAS], ids=str)
def test_ddim_with_eta_1_equals_the_sde_of_dpm_solver(settings):
    walked = walk(make("DPMSolverMultistepScheduler", **settings), ANCESTRAL)
    stochastic = make("DPMSolverMultistepScheduler", algorithm_type="sde-dpmsolver++", **FIRST_ORDER, **settings)
    noise = torch.randn(2, 4, 4, 4)
    for (mean, std), expected in zip(walked.moments, own_steps(stochastic, walked, variance_noise=noise), strict=True):
        close(mean + std * noise, expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("DDPMScheduler", {}),
        ("DDPMScheduler", {"clip_sample": False, "variance_type": "fixed_large", **V}),
        ("EulerAncestralDiscreteScheduler", {"timestep_spacing": "trailing"}),
        ("LCMScheduler", {}),
        ("TCDScheduler", {}),
    ],
)
def test_native_mean_and_std_with_the_scheduler_noise_give_its_step(name, settings):
    walked = walk(make(name, **settings), NATIVE)
    random, again = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    for (mean, std), expected in zip(
        walked.moments, own_steps(make(name, **settings), walked, generator=random), strict=True
    ):
        close(mean + (std * torch.randn(mean.shape, generator=again) if std else 0), expected)
    assert all(std > 0 for _, std in walked.moments[:-1]) and walked.moments[-1][1] == 0


def test_lcm_returns_to_the_following_noise_level():
    scheduler = make("LCMScheduler")
    walked = walk(scheduler, NATIVE)
    kept = scheduler.alphas_cumprod[scheduler.timesteps].tolist()
    assert [std for _, std in walked.moments] == pytest.approx([*((1 - each) ** 0.5 for each in kept[1:]), 0], rel=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "DDIMScheduler",
        "CogVideoXDDIMScheduler",
        "EulerDiscreteScheduler",
        "LMSDiscreteScheduler",
        "DPMSolverMultistepScheduler",
        "UniPCMultistepScheduler",
        "DEISMultistepScheduler",
    ],
)
def test_noise_levels_are_those_of_the_training_timesteps(name):
    scheduler = make(name, timestep_spacing="leading", steps_offset=1)
    scheduler.set_timesteps(STEPS)
    levels = family_of(scheduler).levels(scheduler)
    kept = scheduler.alphas_cumprod[scheduler.timesteps.long()].tolist()
    assert [sigma for sigma, _ in levels] == pytest.approx([(1 - each) ** 0.5 for each in kept], abs=1e-4)
    assert [following for _, following in levels[:-1]] == pytest.approx([sigma for sigma, _ in levels[1:]])
    assert levels[-1][1] == pytest.approx(0, abs=0.05)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "settings", "transition"),
    [
        ("DDPMScheduler", {}, NATIVE),
        ("EulerAncestralDiscreteScheduler", {"timestep_spacing": "leading", "steps_offset": 1}, NATIVE),
        ("LCMScheduler", {}, NATIVE),
        ("TCDScheduler", {}, NATIVE),
        ("EulerDiscreteScheduler", {"timestep_spacing": "leading", "steps_offset": 1}, ANCESTRAL),
        ("LMSDiscreteScheduler", {}, ANCESTRAL),
        ("DPMSolverMultistepScheduler", KARRAS, ANCESTRAL),
        ("UniPCMultistepScheduler", {}, ANCESTRAL),
        ("DEISMultistepScheduler", {}, ANCESTRAL),
        ("DDIMScheduler", {"clip_sample": False, **V}, ANCESTRAL),
    ],
)
def test_stable_diffusion_replays_under_every_scheduler(name, settings, transition, requests):
    pipeline = tiny.build("sd15")
    pipeline.scheduler = make(name, **settings)
    policy = PipelinePolicy(pipeline, tiny.sampling("sd15", transition=transition), lora=LoraConfig(rank=4, alpha=8))
    rollout = policy.rollout(requests, seed=3)
    assert rollout.log_probs.shape == (3, 5) and rollout.log_probs.isfinite().all()
    assert policy.replay_gap(rollout) <= 1e-6
    window = []
    policy.replay(rollout, [1, 4], lambda now: window.append(now.log_probs))
    torch.testing.assert_close(torch.cat(window, dim=1), rollout.log_probs[:, [1, 4]], atol=1e-6, rtol=0)


def ask(scheduler: Any, walked: Walk) -> list[tuple[Tensor, float]]:
    """The moments that a stochastic scheduler has at the samples and outputs of another's walk."""
    handler = Walk(NATIVE)
    with intercept_scheduler(scheduler, handler):
        begin(scheduler)
        for timestep, output, x in zip(scheduler.timesteps, walked.outputs, walked.samples, strict=True):
            scheduler.step(output, timestep, x)
    return handler.moments


def close(mean: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(mean, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-4)
