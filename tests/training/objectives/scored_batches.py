"""Micro-batches that are given rather than drawn, policies that visit in parts, and the gradients that both give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from mmrl.config.algorithms.policy_gradient import (
    B2DiffuRLConfig,
    BranchGRPOConfig,
    DDPOConfig,
    DPOKConfig,
    GRPOGuardConfig,
    UniGRPOConfig,
)
from mmrl.policy import Capability, DecisionCallback, StepOutputs
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from tests.training.token_policy import TokenPolicy, questions

OF_STEPS = (GRPOGuardConfig, DDPOConfig, DPOKConfig, UniGRPOConfig, BranchGRPOConfig, B2DiffuRLConfig)
"""Presets for denoising steps: they look at moments, at trees, or at what a prompt has earned before."""


class InParts(TokenPolicy):
    """Visits one column at a time, as a pipeline does, and cannot be cut."""

    capabilities = TokenPolicy.capabilities - {Capability.SELECT_ROWS}
    visits = 0

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        for column in step_indices:
            self.visits += 1
            super().replay(rollout, [column], visit)


class Counting(TokenPolicy):
    """Remembers how many rows each replay had."""

    def __init__(self, capabilities: frozenset[Capability] = TokenPolicy.capabilities, **settings: int) -> None:
        super().__init__(**settings)
        self.capabilities = capabilities
        self.replayed: list[int] = []

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        self.replayed.append(rollout.rows)
        super().replay(rollout, step_indices, visit)


def batch_of(policy: TokenPolicy, advantages: Sequence[float], seed: int = 0, n: int = 4) -> MicroBatch:
    """Answers of unlike length to len(advantages) / n questions; NaN: could not be scored."""
    samples = questions(len(advantages) // n)
    rollout = policy.rollout([RolloutRequest(sample, n, group) for group, sample in enumerate(samples)], seed)
    targets = torch.tensor(advantages)
    scored = targets.isfinite()
    targets = targets.where(scored, 0.0)
    return MicroBatch(rollout, targets, scored, targets[:, None].where(rollout.mask, 0.0))


def moved(policy: TokenPolicy, by: float = 0.3) -> TokenPolicy:
    """The policy some updates later."""
    policy.logits.data += by * torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(5))
    policy.version += 1
    return policy


def gradient_of(
    objective: Objective, policy: TokenPolicy, batches: Sequence[MicroBatch]
) -> tuple[Tensor, MetricAccumulator]:
    """Return the gradient and metrics of one update, accumulated as by the Trainer."""
    policy.logits.grad = None
    gauges, amounts = MetricAccumulator(), [objective.loss_normalizer(batch) for batch in batches]
    for batch, amount in zip(batches, amounts, strict=True):
        objective.backward(batch, amount / sum(amounts), 0, gauges)
    found = torch.zeros_like(policy.logits) if policy.logits.grad is None else policy.logits.grad.clone()
    return found, gauges


def cut(batch: MicroBatch, *at: int) -> list[MicroBatch]:
    """The same rows as several micro-batches."""
    bounds = [0, *at, batch.rollout.rows]
    return [rows_of(batch, list(range(a, b))) for a, b in pairwise(bounds)]


def rows_of(batch: MicroBatch, rows: list[int]) -> MicroBatch:
    return replace(
        batch,
        rollout=batch.rollout.select(rows),
        advantages=batch.advantages[rows],
        scored=batch.scored[rows],
        step_advantages=batch.step_advantages[rows],
    )


def log_probs_of(policy: TokenPolicy, rollout: Rollout) -> Tensor:
    """[B, T] with a graph."""
    found: list[StepOutputs] = []
    TokenPolicy.replay(policy, rollout, range(rollout.mask.shape[1]), found.append)
    return found[0].log_probs
