"""Every tiny pipeline: a replay repeats its rollout exactly, with gradients, guided and unguided.

The classes here are those that `mmrl doctor --pipelines` calls proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from mmrl.config.policy import LoraConfig
from mmrl.data.sample import Sample
from mmrl.generation import PipelinePolicy
from mmrl.policy import Rollout, RolloutRequest

EXACT = 1e-6
STEPS = 4


def cases() -> list[Any]:
    """Each pipeline, and again without guidance where it has any."""
    return [
        pytest.param(name, changes, id=f"{name}-{how}", marks=[pytest.mark.slow] * described.slow)
        for name, described in tiny.PIPELINES.items()
        for how, changes in (("plain", {}), ("unguided", described.unguided))
        if changes is not None
    ]


def names() -> list[Any]:
    """Each pipeline once."""
    return [pytest.param(name, marks=[pytest.mark.slow] * each.slow) for name, each in tiny.PIPELINES.items()]


@pytest.mark.parametrize(("name", "changes"), cases())
def test_replay_is_exact_and_trains(name, changes, tmp_path):
    policy = make_policy(name, steps=STEPS, **changes)
    for samples in calls(tiny.samples(name, tmp_path)):
        rollout = roll(policy, samples)
        assert rollout.log_probs.shape[0] == len(rollout.media) == len(rollout.clean) == 2
        assert rollout.log_probs.shape[1] >= 1 and rollout.log_probs.isfinite().all()
        assert not torch.equal(rollout.clean[0], rollout.clean[1])  # each row has noise of its own
        replayed, gradients = replay(policy, rollout)
        assert (replayed - rollout.log_probs).abs().max() <= EXACT
        assert all(gradient.isfinite().all() for gradient in gradients) and any(each.any() for each in gradients)
        learn(policy)
        moved, _ = replay(policy, rollout)
        assert ((moved - replayed).abs().amax(0) > 0).all()  # what was learned reaches every decision
        alone, _ = replay(policy, rollout, [rollout.log_probs.shape[1] - 1])
        assert (alone[:, 0] - moved[:, -1]).abs().max() <= EXACT  # whatever was skipped before it


@pytest.mark.parametrize("name", names())
def test_a_row_answers_all_that_it_is_given(name, tmp_path):
    """Its own prompt, each of its pictures, guidance where there is any; and nobody else's prompt."""
    policy = make_policy(name, steps=2)
    first, second = tiny.samples(name, tmp_path)
    given = roll(policy, [first, first] if first.conditions else [first, second])
    for condition in first.conditions:
        changed = replace(first, conditions={**first.conditions, condition: second.conditions[condition]})
        if changed != first:
            assert differs(drawn(roll(policy, [changed, changed])), drawn(given)), condition
    if first.conditions:
        changed = replace(first, prompt=second.prompt)
        assert differs(drawn(roll(policy, [changed, changed])), drawn(given)) == tiny.PIPELINES[name].reads_prompt
    else:
        others = roll(policy, [first, first]).clean
        assert differs(given.clean[1], others[1])
        if tiny.PIPELINES[name].own_rows:
            torch.testing.assert_close(given.clean[0], others[0], rtol=1e-4, atol=1e-4)
    if (unguided := tiny.PIPELINES[name].unguided) is not None:
        plain = roll(make_policy(name, steps=2, **unguided), [first, first] if first.conditions else [first, second])
        assert differs(drawn(plain), drawn(given))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_gradient_is_that_of_the_decisions(name, tmp_path):
    """Against a finite difference along it: a part of the model that learns unseen would show.

    It is taken of the means, from which log-probabilities follow: float32 rounds them less than their average.
    """
    policy = make_policy(name, steps=STEPS)
    parameters = policy.parameters_to_train().values()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:  # adapters begin with zeros, where half of their gradient is zero too
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    rollout = roll(policy, calls(tiny.samples(name, tmp_path))[0])
    columns = range(rollout.log_probs.shape[1])
    weights: dict[int, torch.Tensor] = {}

    def score() -> float:
        scores = []

        def visit(now):
            weight = weights.setdefault(now.columns[0], torch.randn(now.mean.shape, generator=generator))
            scores.append((weight * now.mean).double().sum())
            if scores[-1].requires_grad:
                scores[-1].backward()

        policy.replay(rollout, columns, visit)
        return sum(scores).item()

    def along(step: float) -> float:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter += step / norm * gradient
            found = score()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= step / norm * gradient
        return found

    score()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    norm = sum(gradient.square().sum() for gradient in gradients).sqrt().item()
    steps = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
    ratios = [(along(step) - along(-step)) / (2 * step * norm) for step in steps]
    assert min(abs(ratio - 1) for ratio in ratios) < 0.005, ratios


def drawn(rollout: Rollout) -> torch.Tensor:
    """Latents and pictures end to end: what is masked out is put back after the last step."""
    frames = [frame for made in rollout.media for frame in (made if isinstance(made, list) else [made])]
    pixels = [torch.from_numpy(np.array(frame)).flatten().float() for frame in frames]
    return torch.cat([rollout.clean.flatten(), *pixels])


def differs(some: torch.Tensor, others: torch.Tensor) -> bool:
    return not torch.allclose(some, others, rtol=1e-5, atol=1e-5)


def make_policy(name: str, **sampling: Any) -> PipelinePolicy:
    return PipelinePolicy(tiny.build(name), tiny.sampling(name, **sampling), lora=LoraConfig(rank=4, alpha=8))


def calls(samples: list[Sample]) -> list[list[Sample]]:
    """Both prompts in one call; where there are pictures, one call each, of two rows."""
    return [[sample, sample] for sample in samples] if samples[0].conditions else [samples]


def roll(policy: PipelinePolicy, samples: list[Sample]) -> Rollout:
    return policy.rollout([RolloutRequest(each, n=1, group=i) for i, each in enumerate(samples)], seed=3)


def replay(
    policy: PipelinePolicy, rollout: Rollout, columns: Sequence[int] | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities [B, T] of some columns, or all, and the gradients of their sum."""
    seen = []
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None

    def visit(now):
        now.log_probs.sum().backward()
        seen.append(now.log_probs.detach())

    policy.replay(rollout, range(rollout.log_probs.shape[1]) if columns is None else columns, visit)
    return torch.cat(seen, dim=1), [p.grad for p in policy.parameters_to_train().values() if p.grad is not None]


@torch.no_grad()
def learn(policy: PipelinePolicy) -> None:
    """A step that is large enough to be seen in every decision."""
    for parameter in policy.parameters_to_train().values():
        if parameter.grad is not None:
            parameter += 0.5 * parameter.grad.sign()
