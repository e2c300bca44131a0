"""The checks of every tiny pipeline, whose classes are those that `mmrl doctor --pipelines` calls proven.

A pipeline is built once for all checks, and checked with guidance and, if it has any, without. The representatives of
`representatives.py` run every day; the others run under the marker `breadth`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.config.policy import LoraConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample
from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.generation.diffusion.scheduler_families import family_of
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny
from tests.generation.representatives import representatives
from tests.generation.tiny_pipelines import (
    cogvideox,
    edits,
    flow_images,
    flux_images,
    hunyuan_video,
    kandinsky,
    ltx,
    noise_transformers,
    sdxl,
    single_stream,
    unet_videos,
    unets,
    videos,
    wan,
)

EXACT = 1e-6
STEPS = 4
FLOW_IMAGES = (flow_images, flux_images, single_stream, edits)
NOISE_IMAGES = (unets, sdxl, kandinsky, noise_transformers)
VIDEOS = (wan, ltx, hunyuan_video, cogvideox, videos, unet_videos)
"""The tables of the three test files, which workers can share."""


@dataclass(frozen=True)
class Built:
    """A tiny pipeline as a policy, and two samples of what it takes."""

    name: str
    policy: PipelinePolicy
    samples: list[Sample]


def names(*tables: ModuleType) -> list[Any]:
    """Return a parameter for each pipeline of these tables, marked `breadth` unless it is a representative."""
    return [
        pytest.param(
            name, marks=[pytest.mark.slow] * each.slow + [pytest.mark.breadth] * (name not in representatives())
        )
        for table in tables
        for name, each in table.PIPELINES.items()
    ]


def build(name: str, folder: Path) -> Built:
    """The samples' pictures go to `folder`."""
    torch.manual_seed(0)  # initialises the adapters, independent of earlier tests
    policy = PipelinePolicy(tiny.build(name), tiny.sampling(name, steps=STEPS), lora=LoraConfig(rank=4, alpha=8))
    return Built(name, policy, tiny.samples(name, folder))


def check_replays(built: Built) -> None:
    """Check that a replay repeats its rollout exactly, with gradients, and that an update changes every decision."""
    name, policy = built.name, built.policy
    guided, other = (
        tiny.sampling(name, steps=STEPS),
        tiny.sampling(name, steps=STEPS, **unguided(name)),
    )
    rows = tiny.PIPELINES[name].rows
    parts = calls(name, built.samples)
    drawn = [roll(policy, parts[0], guided)]
    if len(parts) > 1 or other != guided:
        drawn.append(roll(policy, parts[-1], other))  # of another picture, without guidance, or both
    before = []
    for rollout in drawn:
        assert rollout.log_probs.shape[0] == len(rollout.media) == len(rollout.clean) == rows
        assert rollout.log_probs.shape[1] >= 1 and rollout.log_probs.isfinite().all()
        other_row = rollout.clean[1] if rows > 1 else roll(policy, parts[0], guided, seed=4).clean[0]
        assert not torch.equal(rollout.clean[0], other_row)  # each row has different noise
        replayed, gradients = replay(policy, rollout)
        assert (replayed - rollout.log_probs).abs().max() <= EXACT
        assert all(gradient.isfinite().all() for gradient in gradients) and any(each.any() for each in gradients)
        before.append(replayed)
    check_velocity(policy, drawn[0])
    kept = {path: parameter.detach().clone() for path, parameter in policy.parameters_to_train().items()}
    learn(policy)
    for rollout, replayed in zip(drawn, before, strict=True):
        step_indices = range(rollout.log_probs.shape[1])
        moved = look(policy, rollout, step_indices)
        assert ((moved - replayed).abs().amax(0) > 0).all()  # what was learned reaches every decision
        alone = look(policy, rollout, step_indices[-1:])
        assert (alone[:, 0] - moved[:, -1]).abs().max() <= EXACT  # independent of the skipped steps
    with torch.no_grad():
        for path, parameter in policy.parameters_to_train().items():
            parameter.copy_(kept[path])


def check_velocity(policy: PipelinePolicy, rollout: Rollout) -> None:
    """Check that velocities at two noise levels are finite and differ, unless the levels are not known."""
    scheduler = policy.pipeline.scheduler
    cosmos = family_of(scheduler).name == "ve" and not hasattr(scheduler, "alphas_cumprod")
    if cosmos or family_of(scheduler).name == "native" or scheduler.config.get("timestep_type") == "continuous":
        with pytest.raises(UnsupportedError, match="does not say"):
            policy.noise_level(0.5)
        return
    if rollout.recording.num_schedules > 1:
        return
    found = [policy.predict_velocity(rollout, rollout.clean, policy.noise_level(place)) for place in (0.02, 0.8)]
    assert found[0].shape == rollout.clean.shape and found[0].isfinite().all() and found[0].requires_grad
    assert not torch.equal(*found)


def check_answers(built: Built) -> None:
    """Check that a row depends on its prompt, on each of its images and on guidance, and on no other row's prompt."""
    name, policy = built.name, built.policy
    first, second = built.samples
    sampling = tiny.sampling(name, steps=2)
    rows = tiny.PIPELINES[name].rows
    both = [first] * rows if first.conditions else [first, second]
    original = roll(policy, both, sampling)
    for condition in first.conditions:
        changed = replace(first, conditions={**first.conditions, condition: second.conditions[condition]})
        if changed != first:
            assert differs(
                pixels_and_latents(roll(policy, [changed] * rows, sampling)), pixels_and_latents(original)
            ), condition
    if first.conditions:
        changed = replace(first, prompt=second.prompt)
        reads = differs(pixels_and_latents(roll(policy, [changed] * rows, sampling)), pixels_and_latents(original))
        assert reads == tiny.PIPELINES[name].reads_prompt
    else:
        others = roll(policy, [first, first], sampling).clean
        assert differs(original.clean[1], others[1])
        if tiny.PIPELINES[name].own_rows:
            torch.testing.assert_close(original.clean[0], others[0], rtol=1e-4, atol=1e-4)
    if tiny.PIPELINES[name].unguided is not None:
        plain = roll(policy, both, tiny.sampling(name, steps=2, **unguided(name)))
        assert differs(pixels_and_latents(plain), pixels_and_latents(original))


def unguided(name: str) -> Mapping[str, Any]:
    """Changes of its sampling; none where a pipeline has no guidance to turn off."""
    return tiny.PIPELINES[name].unguided or {}


def calls(name: str, samples: list[Sample]) -> list[list[Sample]]:
    """Both prompts in one call; where there are pictures, one call each, of two rows or as many as it makes."""
    return [[sample] * tiny.PIPELINES[name].rows for sample in samples] if samples[0].conditions else [samples]


def roll(policy: PipelinePolicy, samples: list[Sample], sampling: SamplingConfig, seed: int = 3) -> Rollout:
    """A row for each sample."""
    requests = [RolloutRequest(each, n=1, group=i, sampling=sampling) for i, each in enumerate(samples)]
    return policy.rollout(requests, seed=seed)


def replay(policy: PipelinePolicy, rollout: Rollout) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities [B, T] and the gradients of their sum."""
    seen = []
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None

    def visit(now):
        now.log_probs.sum().backward()
        seen.append(now.log_probs.detach())

    policy.replay(rollout, range(rollout.log_probs.shape[1]), visit)
    return torch.cat(seen, dim=1), [p.grad for p in policy.parameters_to_train().values() if p.grad is not None]


@torch.no_grad()
def look(policy: PipelinePolicy, rollout: Rollout, step_indices: Sequence[int]) -> torch.Tensor:
    """Log-probabilities [B, len(columns)] without gradients."""
    seen: list[torch.Tensor] = []
    policy.replay(rollout, step_indices, lambda now: seen.append(now.log_probs))
    return torch.cat(seen, dim=1)


@torch.no_grad()
def learn(policy: PipelinePolicy) -> None:
    """A step that is large enough to be seen in every decision."""
    for parameter in policy.parameters_to_train().values():
        if parameter.grad is not None:
            parameter += 0.5 * parameter.grad.sign()


def pixels_and_latents(rollout: Rollout) -> torch.Tensor:
    """Latents and pictures end to end: what is masked out is put back after the last step."""
    frames = [frame for made in rollout.media for frame in (made if isinstance(made, list) else [made])]
    pixels = [torch.from_numpy(np.array(frame)).flatten().float() for frame in frames]
    return torch.cat([rollout.clean.flatten(), *pixels])


def differs(some: torch.Tensor, others: torch.Tensor) -> bool:
    """By more than rounding."""
    return not torch.allclose(some, others, rtol=1e-5, atol=1e-5)
