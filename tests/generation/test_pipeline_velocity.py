"""The velocity at any (x_t, sigma) is what the sampler would use there."""

from __future__ import annotations

import pytest
import torch

from mmrl.generation import GenerationError
from mmrl.generation.diffusion.scheduler_families import FlowFamily
from tests.generation import tiny_pipelines as tiny
from tests.generation.pipeline_checks import CLASSES, assert_untouched, count_denoiser_calls


@pytest.mark.parametrize("name", [*CLASSES, "wan22"])
def test_velocity_at_a_recorded_step_equals_the_recorded_one(name, make_policy, requests):
    policy = make_policy(name)
    rollout = policy.rollout(requests, seed=3)
    recorded = {}
    with torch.no_grad():
        policy.replay(rollout, range(5), lambda now: recorded.update({now.step_indices[0]: now.velocity[:, 0]}))
    levels = FlowFamily().levels(policy.pipeline.scheduler)
    for column in (1, 4):  # wan22 changes transformers in between
        (noisy,) = rollout.recording.next_latents[column - 1]
        velocity = policy.predict_velocity(rollout, noisy, levels[column][0])
        assert velocity.requires_grad
        assert torch.equal(velocity.detach(), recorded[column])


def test_velocity_equals_the_transformer_output(make_policy, requests):
    """0.0 against calling the transformer directly, between the schedule's noise levels and without a second shift."""
    policy = make_policy("sd3", guidance_scale=1.0)
    policy.pipeline.scheduler.set_shift(3.0)
    rollout = policy.rollout(requests, seed=3)
    noisy = torch.randn_like(rollout.clean)
    prompt, _, pooled, _ = rollout.recording.call_cache.entries[0].value
    for sigma in (0.02, 0.437, 1.0):
        expected = policy.pipeline.transformer(
            hidden_states=noisy,
            timestep=torch.full((3,), sigma * 1000),
            encoder_hidden_states=prompt,
            pooled_projections=pooled,
        ).sample
        assert torch.equal(policy.predict_velocity(rollout, noisy, sigma), expected)


@pytest.mark.parametrize("name", CLASSES)
def test_velocity_has_gradients_and_costs_one_step(name, make_policy, requests):
    policy = make_policy(name, "full", transition={"name": "ode"})
    rollout = policy.rollout(requests, seed=3)
    found = []
    calls = count_denoiser_calls(policy, lambda: found.append(policy.predict_velocity(rollout, rollout.clean, 0.5)))
    assert calls == (2 if name in {"qwen_image", "wan"} else 1)  # true guidance is a second call
    assert found[0].shape == rollout.clean.shape
    found[0].square().mean().backward()
    gradients = [p.grad for p in policy.parameters_to_train().values() if p.grad is not None]
    assert sum(gradient.abs().sum() for gradient in gradients) > 0
    with torch.no_grad():
        assert not policy.predict_velocity(rollout, rollout.clean, 0.5).requires_grad


def test_velocity_depends_on_noise_level_latents_and_guidance(make_policy, requests):
    policy = make_policy("sd3", transition={"name": "ode"})
    rollout = policy.rollout(requests, seed=3)
    here = policy.predict_velocity(rollout, rollout.clean, 0.5)
    unguided = make_policy("sd3", transition={"name": "ode"}, guidance_scale=1.0)
    assert not torch.equal(here, policy.predict_velocity(rollout, rollout.clean, 0.6))
    assert not torch.equal(here, policy.predict_velocity(rollout, rollout.clean + 0.1, 0.5))
    assert not torch.equal(here, unguided.predict_velocity(unguided.rollout(requests, seed=3), rollout.clean, 0.5))
    assert_untouched(policy)


def test_step_dependent_guidance_follows_the_noise_level(make_policy, requests):
    """SD3 skips layers in a band of steps: a velocity inside of the band needs the third branch."""
    band = {"skip_guidance_layers": [1], "skip_layer_guidance_start": 0.3, "skip_layer_guidance_stop": 0.8}
    extra = tiny.PIPELINES["sd3"].sampling["pipeline_args"] | band
    policy = make_policy("sd3", pipeline_args=extra)
    rollout = policy.rollout(requests, seed=3)
    assert policy.replay_gap(rollout) == 0

    def calls(sigma: float) -> int:
        return count_denoiser_calls(policy, lambda: policy.predict_velocity(rollout, rollout.clean, sigma))

    assert calls(0.9) == 1
    assert calls(0.5) == 2


def test_velocity_with_a_single_step_schedule(make_policy, requests):
    policy = make_policy("sd3", steps=1, transition={"name": "ode"})
    rollout = policy.rollout(requests, seed=3)
    assert policy.predict_velocity(rollout, rollout.clean, 0.5).shape == rollout.clean.shape
    assert policy.replay_gap(rollout) == 0


def test_invalid_velocity_queries_raise(make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    for sigma in (0.0, 1.5):
        with pytest.raises(ValueError, match="expected in"):
            policy.predict_velocity(rollout, rollout.clean, sigma)
    with pytest.raises(GenerationError, match=r"noisy is \[2, 4, 8, 8\]"):
        policy.predict_velocity(rollout, rollout.clean[:2], 0.5)
