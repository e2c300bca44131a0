"""From pictures back to the denoiser: the pictures are the rollout's, and the gradients those of finite differences."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor

from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.policy import BackpropSteps
from mmrl.rollout import Rollout
from mmrl_shapeworld.pruned_pictures import graph_bytes
from tests.generation import tiny_pipelines as tiny
from tests.generation.pipeline_checks import assert_untouched, count_denoiser_calls

ODE = {"transition": {"name": "ode"}, "guidance_scale": 1.0, "steps": 4}
ROUNDING = 0.51 / 255  # pictures have 256 levels


def drawn(policy: PipelinePolicy, requests: Any, seed: int = 3) -> Rollout:
    with policy.keep_latents():
        return policy.rollout(requests, seed)


def pixels(rollout: Rollout) -> Tensor:
    """[B, 3, H, W], or [B, F, 3, H, W], of the rollout's media."""
    made = [
        [np.asarray(frame) for frame in each] if isinstance(each, list) else np.asarray(each) for each in rollout.media
    ]
    return torch.from_numpy(np.array(made) / 255).float().movedim(-1, -3)


def objective(pictures: Tensor) -> Tensor:
    """A smooth number that every pixel has a part in."""
    weights = torch.randn(pictures.shape, generator=torch.Generator().manual_seed(0))
    return (weights * pictures + pictures.square()).double().mean()


def gradients(policy: PipelinePolicy, rollout: Rollout, live: BackpropSteps) -> list[Tensor]:
    parameters = list(policy.parameters_to_train().values())
    found = torch.autograd.grad(objective(policy.decode_with_grad(rollout, live)), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@torch.no_grad()
def slope(policy: PipelinePolicy, rollout: Rollout, live: BackpropSteps, along: list[Tensor], h: float) -> float:
    """The central difference of the objective along a direction of the parameters."""
    parameters = list(policy.parameters_to_train().values())
    values = []
    for sign in (1, -2):  # up, then from up to down
        for parameter, direction in zip(parameters, along, strict=True):
            parameter += sign * h * direction
        values.append(objective(policy.decode_with_grad(rollout, live)).item())
    for parameter, direction in zip(parameters, along, strict=True):
        parameter += h * direction
    return (values[0] - values[1]) / (2 * h)


@pytest.mark.integration
@pytest.mark.parametrize(
    "live",
    [
        BackpropSteps(1),
        BackpropSteps(2),
        BackpropSteps(None),
        BackpropSteps(1, num_skipped_last=2),
        BackpropSteps(1, noise_seed=4),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["sd3", "sd15"])
def test_decode_gradients_equal_finite_differences(name, live, make_policy, requests):
    policy = make_policy(name, "full", **ODE)
    rollout = drawn(policy, requests)
    found = gradients(policy, rollout, live)
    norm = torch.stack([each.norm() for each in found]).norm()
    unit = [each / norm for each in found]
    assert slope(policy, rollout, live, unit, h=0.02) == pytest.approx(norm.item(), rel=0.03)


@pytest.mark.integration
def test_gradients_depend_on_the_backprop_steps(make_policy, requests):
    """The control: the gradient through one step is not the slope of what two steps draw."""
    policy = make_policy("sd3", "full", **ODE)
    rollout = drawn(policy, requests)
    found = gradients(policy, rollout, BackpropSteps(1))
    norm = torch.stack([each.norm() for each in found]).norm()
    two = slope(policy, rollout, BackpropSteps(2), [each / norm for each in found], h=0.02)
    assert abs(two - norm.item()) > 0.1 * norm.item()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "flux", "wan"])
def test_decoded_images_equal_the_rollout_under_unchanged_parameters(name, make_policy, requests):
    policy = make_policy(name, **ODE)
    rollout = drawn(policy, requests)
    for live in (BackpropSteps(1), BackpropSteps(None)):
        pictures = policy.decode_with_grad(rollout, live)
        assert pictures.requires_grad and pictures.dtype == torch.float32
        assert (pictures.detach() - pixels(rollout)).abs().max() <= ROUNDING
        assert sum(g.abs().sum() for g in gradients(policy, rollout, live)) > 0


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "flux", "wan", "animatediff"])
def test_latents_with_gradients_are_those_of_the_rollout_and_nothing_is_decoded(name, make_policy, requests):
    policy = make_policy(name, **ODE)
    rollout = drawn(policy, requests)
    decoded: list[Any] = []
    policy.pipeline.vae.decoder.register_forward_pre_hook(lambda *inputs: decoded.append(inputs))
    for live in (BackpropSteps(1), BackpropSteps(None)):
        clean = policy.clean_with_grad(rollout, live)
        assert torch.equal(clean.detach(), rollout.clean) and clean.requires_grad
    early = policy.clean_with_grad(rollout, BackpropSteps(1, num_skipped_last=2))
    assert not decoded and early.requires_grad and not torch.equal(early.detach(), rollout.clean)
    calls = count_denoiser_calls(policy, partial(policy.clean_with_grad, rollout, BackpropSteps(1, num_skipped_last=2)))
    assert calls == count_denoiser_calls(policy, partial(policy.clean_with_grad, rollout, BackpropSteps(1)))
    assert torch.is_grad_enabled()


def test_gradients_through_latents_are_those_through_the_picture(make_policy, requests):
    """The chain rule: the gradient of a picture with respect to its latents, pulled back through `clean_with_grad`."""
    policy = make_policy("sd3", "full", **ODE)
    rollout = drawn(policy, requests)
    live = BackpropSteps(2)
    parameters = list(policy.parameters_to_train().values())
    leaf = policy.clean_with_grad(rollout, live).detach().requires_grad_()
    vae: Any = policy.pipeline.vae
    pixels = vae.decode(leaf / vae.config.scaling_factor + vae.config.shift_factor).sample
    (outer,) = torch.autograd.grad(objective((pixels / 2 + 0.5).clamp(0, 1)), leaf)
    clean = policy.clean_with_grad(rollout, live)
    found = torch.autograd.grad(clean, parameters, outer, allow_unused=True)
    for one, other in zip(found, gradients(policy, rollout, live), strict=True):
        torch.testing.assert_close(torch.zeros_like(other) if one is None else one, other, rtol=1e-4, atol=1e-8)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("sd3", {"transition": {"name": "flow_sde", "noise_level": 0.7}, "window": {"size": 2, "low": 1, "high": 3}}),
        ("sd3", {"transition": {"name": "flow_sde"}, "window": {"low": 2, "before": "noise"}, "steps": 5}),
        ("sd15", {"transition": {"name": "ddim", "noise_level": 1.0}, "steps": 4}),
        ("lcm", {}),
    ],
)
def test_decode_repeats_the_noise_of_the_rollout(name, sampling, make_policy, requests):
    """Live steps that explore add just what they added then, though those before them are played back."""
    policy = make_policy(name, **sampling)
    rollout = drawn(policy, requests)
    assert rollout.log_probs.shape[1] >= 2
    for count in (2, None):
        pictures = policy.decode_with_grad(rollout, BackpropSteps(count))
        assert (pictures.detach() - pixels(rollout)).abs().max() <= ROUNDING


@pytest.mark.integration
def test_only_backprop_steps_are_computed(make_policy, requests):
    policy = make_policy("sd3", **ODE)
    rollout = drawn(policy, requests)
    for live, expected in (
        (BackpropSteps(1), 1),
        (BackpropSteps(2), 2),
        (BackpropSteps(None), 4),
        (BackpropSteps(1, num_skipped_last=3), 1),
    ):
        assert count_denoiser_calls(policy, partial(policy.decode_with_grad, rollout, live)) == expected
    assert_untouched(policy)
    assert torch.is_grad_enabled()


def test_late_jumps_are_nearer_to_the_image_than_early_ones(make_policy, requests):
    policy = make_policy("sd3", **ODE)
    rollout = drawn(policy, requests)
    with torch.no_grad():
        gaps = [
            (policy.decode_with_grad(rollout, BackpropSteps(1, left)) - pixels(rollout)).abs().max().item()
            for left in (0, 1, 3)
        ]
    assert gaps[0] <= ROUNDING and all(before < after for before, after in pairwise(gaps))


def test_added_noise_differs_by_seed(make_policy, requests):
    policy = make_policy("sd3", **ODE)
    rollout = drawn(policy, requests)
    with torch.no_grad():
        one, again, other = (policy.decode_with_grad(rollout, BackpropSteps(1, noise_seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    with pytest.raises(UnsupportedError, match="begins with pure noise"):
        policy.decode_with_grad(rollout, BackpropSteps(None, noise_seed=1))


@pytest.mark.integration
def test_checkpointing_changes_no_gradient_and_saves_memory(requests):
    found = []
    for checkpointing in (False, True):
        policy = PipelinePolicy(
            tiny.build("sd3"),
            tiny.sampling("sd3", **ODE),
            train="full",
            gradient_checkpointing=checkpointing,
        )
        found.append(gradients(policy, drawn(policy, requests), BackpropSteps(3)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", pytest.param("sd15", marks=pytest.mark.slow), "flux"])
def test_recomputed_steps_have_the_same_gradients_and_keep_no_activations(name, make_policy, requests):
    policy = make_policy(name, "lora", **ODE)
    rollout = drawn(policy, requests)
    with torch.no_grad():  # adapters begin at 0, where half of their gradients are 0
        for parameter in policy.parameters_to_train().values():
            parameter += 0.05
    kept = {}
    for recomputed in (False, True):
        for count in (1, 4):
            with graph_bytes() as found:
                policy.decode_with_grad(rollout, BackpropSteps(count, recomputed=recomputed))
            kept[recomputed, count] = sum(found.values())
    assert kept[True, 4] - kept[True, 1] < 0.02 * (kept[False, 4] - kept[False, 1])
    whole, again = (gradients(policy, rollout, BackpropSteps(None, recomputed=each)) for each in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))
    assert sum(float(each.abs().sum()) for each in whole) > 0
    calls = count_denoiser_calls(policy, partial(gradients, policy, rollout, BackpropSteps(2, recomputed=True)))
    assert calls == 4  # two, and each once more


@pytest.mark.integration
def test_multistep_solvers_follow_the_ode_from_recorded_latents(make_policy, requests):
    """A solver that is taken up in the middle does not know the steps before."""
    policy = make_policy("sd15", **ODE)
    policy.pipeline.scheduler = DPMSolverMultistepScheduler.from_config(policy.pipeline.scheduler.config)
    rollout = drawn(policy, requests)
    pictures = policy.decode_with_grad(rollout, BackpropSteps(2))
    assert (pictures.detach() - pixels(rollout)).abs().max() <= ROUNDING


@pytest.mark.integration
def test_rollouts_without_latents_and_pipelines_without_tensors_raise(make_policy, requests):
    policy = make_policy("sd3", **ODE)
    with pytest.raises(ValueError, match=r"policy\.keep_latents"):
        policy.decode_with_grad(policy.rollout(requests, seed=3), BackpropSteps(1))
    policy = make_policy("lcm", **ODE)
    with pytest.raises(UnsupportedError, match=r"sampling\.transition\.name: native"):
        policy.decode_with_grad(drawn(policy, requests), BackpropSteps(None))
    with pytest.raises(UnsupportedError, match="outside of torch, without gradients"):
        policy = make_policy("cosmos2_image", **ODE)
        policy.decode_with_grad(drawn(policy, requests), BackpropSteps(1))


@pytest.mark.integration
def test_detached_inputs_give_the_sum_of_step_gradients(make_policy, requests):
    """By hand: what is added to every answer moves x_0 by -dt in each step, so its gradient grows with their range."""
    policy = make_policy("sd3", "full", **ODE)
    rollout = drawn(policy, requests)
    names = list(policy.parameters_to_train())
    sigmas = policy.pipeline.scheduler.sigmas.tolist()

    def of_bias(count: int) -> Tensor:
        return gradients(policy, rollout, BackpropSteps(count, detached=True))[names.index("transformer.proj_out.bias")]

    for count in (2, 4):
        torch.testing.assert_close(of_bias(count), of_bias(1) * (sigmas[4 - count] / sigmas[3]), rtol=1e-3, atol=1e-9)
    chained = gradients(policy, rollout, BackpropSteps(4))[names.index("transformer.proj_out.bias")]
    assert not torch.allclose(chained, of_bias(4), rtol=0.01)
    one, other = (policy.decode_with_grad(rollout, BackpropSteps(None, detached=cut)) for cut in (True, False))
    assert torch.equal(one, other)  # in value they are the same
