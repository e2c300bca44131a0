"""Every tiny pipeline: a replay repeats its rollout exactly, with gradients, guided and unguided.

The classes here are those that `mmrl doctor --pipelines` calls proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


@pytest.mark.parametrize("name", [name for name, each in tiny.PIPELINES.items() if each.own_rows and not each.slow])
def test_rows_are_their_own(name, tmp_path):
    """A row answers its own prompt, pictures and noise, and nobody else's."""
    policy = make_policy(name, steps=2)
    first, second = tiny.samples(name, tmp_path)
    if first.conditions:
        rows, others = roll(policy, [first, first]), roll(policy, [second, second])
        assert not torch.allclose(rows.clean, others.clean)
        return
    rows, others = roll(policy, [first, second]), roll(policy, [first, first])
    torch.testing.assert_close(rows.clean[0], others.clean[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(rows.clean[1], others.clean[1], rtol=1e-4, atol=1e-4)


def make_policy(name: str, **sampling: Any) -> PipelinePolicy:
    train = "lora" if tiny.PIPELINES[name].adapters else "full"
    return PipelinePolicy(tiny.build(name), tiny.sampling(name, **sampling), train, LoraConfig(rank=4, alpha=8))


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
