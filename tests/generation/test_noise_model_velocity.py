"""A flow's velocity of models that predict noise, v or x_0: against diffusers' own noising and its own steps."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

from mmrl.config.policy import LoraConfig
from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
DDIM = {"clip_sample": False, "set_alpha_to_one": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "noise": ("DDIMScheduler", DDIM),
    "v": ("DDIMScheduler", {"prediction_type": "v_prediction", **DDIM}),
    "picture": ("DDIMScheduler", {"prediction_type": "sample", **DDIM}),
    "zero signal": ("DDIMScheduler", {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, **DDIM}),
    "solver": ("DPMSolverMultistepScheduler", {}),
    "unipc, v": ("UniPCMultistepScheduler", {"prediction_type": "v_prediction"}),
    "variance exploding": ("EulerDiscreteScheduler", {}),
    "variance exploding, v": ("EulerDiscreteScheduler", {"prediction_type": "v_prediction"}),
    "lms": ("LMSDiscreteScheduler", {}),
}
EVERY_DAY = ("noise", "v", "variance exploding")
NAMES = [pytest.param(case, marks=[pytest.mark.breadth] * (case not in EVERY_DAY)) for case in CASES]

# numpy is handed tensors by the schedules of DPM++ and its kin
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The `scale_model_input` function should be called:UserWarning"),
]


def make(case: str, guidance: float = 1.0, **sampling: Any) -> PipelinePolicy:
    kind, settings = CASES[case]
    pipeline = tiny.build("sd15")
    pipeline.scheduler = getattr(diffusers, kind)(**BETAS, **settings)
    sampling = tiny.sampling("sd15", guidance_scale=guidance, transition={"name": "ode"}, steps=6, **sampling)
    return PipelinePolicy(pipeline, sampling, lora=LoraConfig(rank=4, alpha=8))


def text(rollout: Any) -> torch.Tensor:
    """Return the text encoder's output, as the UNet gets it."""
    return next(
        entry.value[0] for entry in rollout.recording.call_cache.entries if isinstance(entry.value, tuple | list)
    )


@pytest.mark.integration
@pytest.mark.parametrize("case", NAMES)
def test_velocity_equals_noise_minus_image_from_unet_and_scheduler_step(case, requests):
    policy = make(case)
    rollout = policy.rollout(requests, seed=3)
    plain = diffusers.DDIMScheduler(**BETAS, **(DDIM | CASES[case][1]))  # the plainest arithmetic of these timesteps
    clean = rollout.clean
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    for place in (0.05, 0.4, 0.9):
        sigma, timestep = policy.noise_level(place), round(place * 999)
        noisy = plain.add_noise(clean, noise, torch.tensor([timestep]))
        with torch.no_grad():
            output = policy.pipeline.unet(noisy, timestep, encoder_hidden_states=text(rollout)).sample
            plain.set_timesteps(1000)
            picture = plain.step(output, timestep, noisy).pred_original_sample
            kept = plain.alphas_cumprod[timestep]
            expected = (noisy - kept.sqrt() * picture) / (1 - kept).sqrt() - picture
            velocity = policy.predict_velocity(rollout, (1 - sigma) * clean + sigma * noise, sigma)
        torch.testing.assert_close(velocity, expected, rtol=2e-4, atol=2e-4)
        assert sigma / (1 - sigma) == pytest.approx(((1 - kept) / kept).sqrt().item(), rel=1e-4), place


@pytest.mark.integration
@pytest.mark.parametrize("case", NAMES)
def test_pure_noise_has_a_velocity(case, requests):
    """Beyond a model's noisiest timestep that one answers; at zero terminal signal there is none beyond."""
    policy = make(case)
    rollout = policy.rollout(requests, seed=3)
    noise = torch.randn(rollout.clean.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        velocity = policy.predict_velocity(rollout, noise, 1.0)
        below = policy.predict_velocity(rollout, noise, policy.noise_level(1.0))
    assert velocity.isfinite().all() and velocity.abs().max() < 3 * below.abs().max()


@pytest.mark.integration
@pytest.mark.parametrize("place", [0.02, 0.6, *(pytest.param(place, marks=pytest.mark.slow) for place in (0.2, 0.98))])
def test_velocity_of_loops_that_start_mid_schedule(place, tmp_path):
    """`strength` 0.7 leaves out the first three of ten steps; DDIM does not know where the loop begins."""
    sampling = tiny.sampling("sd15_img2img", steps=10, transition={"name": "ode"}, pipeline_args={"strength": 0.7})
    policy = PipelinePolicy(tiny.build("sd15_img2img"), sampling, lora=LoraConfig(rank=4, alpha=8))
    requests = [RolloutRequest(sample, 1, 0) for sample in tiny.samples("sd15_img2img", tmp_path)[:1]]
    rollout = policy.rollout(requests, seed=3)
    seen = []
    hook = policy.pipeline.unet.register_forward_pre_hook(lambda module, inputs: seen.append(float(inputs[1])))
    velocity = policy.predict_velocity(rollout, rollout.clean, policy.noise_level(place))
    hook.remove()
    assert velocity.shape == rollout.clean.shape and seen == [round(place * 999)]


@pytest.mark.integration
@pytest.mark.parametrize(
    "case", ["noise", *(pytest.param(case, marks=pytest.mark.slow) for case in ("v", "variance exploding"))]
)
def test_velocity_has_gradients_and_depends_on_every_input(case, requests):
    policy = make(case)
    rollout = policy.rollout(requests, seed=3)
    noisy = torch.randn(rollout.clean.shape, generator=torch.Generator().manual_seed(0))
    sigma = policy.noise_level(0.5)
    here = policy.predict_velocity(rollout, noisy, sigma)
    here.square().mean().backward()
    assert sum(p.grad.abs().sum() for p in policy.parameters_to_train().values() if p.grad is not None) > 0
    guided = make(case, guidance=4.0)
    others = (
        policy.predict_velocity(rollout, noisy, policy.noise_level(0.6)),
        policy.predict_velocity(rollout, noisy + 0.1, sigma),
        guided.predict_velocity(guided.rollout(requests, seed=3), noisy, sigma),
    )
    for other in others:
        assert not torch.allclose(other, here, rtol=1e-3, atol=1e-3)
    again = policy.rollout(requests, seed=3)
    assert torch.equal(again.clean, rollout.clean)  # the schedule is as it was


@pytest.mark.integration
@pytest.mark.parametrize("case", ["noise", "variance exploding"])
def test_encoded_images_have_the_velocities_of_their_rollout(case, requests):
    policy = make(case)
    rollout = policy.rollout(requests, seed=3)
    alone = policy.rollout_from_latents([rollout.samples[2]], [7], rollout.clean[2:], [rollout.media[2]])
    noisy = torch.randn(rollout.clean.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = policy.predict_velocity(rollout, noisy, 0.5)[2:]
        torch.testing.assert_close(policy.predict_velocity(alone, noisy[2:], 0.5), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.integration
def test_noise_levels_are_training_timesteps_in_rising_order():
    policy = make("noise")
    levels = [policy.noise_level(place / 999) for place in range(1000)]
    assert levels == sorted(levels) and levels[0] > 0.02 and 0.93 < levels[-1] < 0.94
    assert make("zero signal").noise_level(1.0) == 1.0


@pytest.mark.integration
def test_schedulers_that_sample_noise_raise(requests):
    pipeline = tiny.build("sd15")
    pipeline.scheduler = diffusers.DDPMScheduler(**BETAS)
    policy = PipelinePolicy(pipeline, tiny.sampling("sd15", transition={"name": "ode"}))
    rollout = policy.rollout(requests, seed=3)
    for ask in (lambda: policy.noise_level(0.5), lambda: policy.predict_velocity(rollout, rollout.clean, 0.5)):
        with pytest.raises(UnsupportedError, match=r"DDPMScheduler does not say how much noise .*DDIMScheduler"):
            ask()
