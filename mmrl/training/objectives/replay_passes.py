"""Replays for losses that depend on all decisions of a row at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmrl.policy import Policy, StepOutputs
from mmrl.rollout import Rollout


def marked_steps(mask: Tensor) -> list[int]:
    """Return the columns of a mask [B, T] in which some row is marked."""
    columns: list[int] = mask.any(0).nonzero()[:, 0].tolist()
    return columns


def backpropagate(loss: Tensor, policy: Policy) -> None:
    """Backpropagate a loss of a policy's decisions.

    Of two denoisers one may be frozen (`policy.denoisers`, Wan 2.2): at its noise levels there is nothing to learn.

    Raises:
        RuntimeError: the loss has no graph, and no denoiser is frozen.
    """
    if loss.requires_grad or not getattr(policy, "has_frozen_denoisers", False):
        loss.backward()


def replayed_log_probs(policy: Policy, rollout: Rollout, step_indices: Sequence[int]) -> Tensor:
    """Return the log-probabilities [B, K] of K decisions under the present parameters, without gradients."""
    parts: list[Tensor] = []
    with torch.no_grad():
        policy.replay(rollout, step_indices, lambda now: parts.append(now.log_probs))
    return torch.cat(parts, dim=1)


def backpropagate_coupled(
    policy: Policy,
    rollout: Rollout,
    step_indices: Sequence[int],
    coupled: Callable[[Tensor], Tensor],
    alone: Callable[[StepOutputs], Tensor | None] = lambda now: None,
) -> None:
    """Backpropagate `coupled` of all log-probs [B, K] at once, plus `alone` of each block of decisions.

    A policy that visits all decisions in one call is differentiated in one go. One that visits them in parts holds
    only one part's graph at a time: there the log-probs are collected first, `coupled` is differentiated with respect
    to them, and a second replay carries those coefficients into the parameters. Both give the same gradient.
    """
    parts: list[Tensor] = []
    in_one_go = False

    def first(now: StepOutputs) -> None:
        nonlocal in_one_go
        in_one_go = len(now.step_indices) == len(step_indices)
        if in_one_go:
            backpropagate(_sum(coupled(now.log_probs), alone(now)), policy)
        else:
            parts.append(now.log_probs.detach())

    with torch.enable_grad():
        policy.replay(rollout, step_indices, first)
        if in_one_go:
            return
        leaf = torch.cat(parts, dim=1).requires_grad_()
        (coefficients,) = torch.autograd.grad(coupled(leaf), leaf)
        place = {column: k for k, column in enumerate(step_indices)}

        def second(now: StepOutputs) -> None:
            here = coefficients[:, [place[column] for column in now.step_indices]]
            backpropagate(_sum((here * now.log_probs).sum(), alone(now)), policy)

        policy.replay(rollout, step_indices, second)


def _sum(loss: Tensor, more: Tensor | None) -> Tensor:
    return loss if more is None else loss + more
