"""Several rewards, one gradient: Pareto selection, channels that are normalised each by itself, and a reward that is
held above a threshold while another rises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_counts, group_spread
from mmrl.checks import check_dtypes, check_shapes


def pareto_advantages(
    rewards: Tensor,  # [B, R] float, one column a reward, higher is better in each; NaN = could not be scored
    front: Tensor,  # [B] bool; the rows that no row of their group dominates
    group_index: Tensor,  # [B] int
    weights: Sequence[float] | None = None,  # R of them, >= 0; None = all 1
) -> Tensor:  # [B], >= 0; 0 off the front, in groups of equal rewards, and where unscored
    """The rewards of a group's Pareto front, and 0 for all other rows (Parrot's selection, arXiv:2401.05675).

    A row of the front gets its rewards, each as its place between the group's worst (0) and best (1), averaged by
    weight, times G / F: G rows of the group are scored and F of them are on the front. A mean over rows is then the
    paper's mean over the front. The paper adds up raw rewards, which assumes that all are positive and of one scale.

    >>> two = torch.tensor([[4.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    >>> pareto_advantages(two, torch.tensor([True, True, False, False]), torch.zeros(4, dtype=torch.long))
    tensor([1., 1., 0., 0.])
    """
    sizes = check_shapes("B R", rewards=rewards)
    check_shapes("B", {"B": sizes["B"]}, front=front, group_index=group_index)
    check_dtypes("bool", front=front)
    weight = rewards.new_tensor([1.0] * sizes["R"] if weights is None else list(weights))
    check_shapes("R", {"R": sizes["R"]}, weights=weight)
    if (weight < 0).any() or not (weight > 0).any():
        raise ValueError(f"weights: none may be below 0, and one must be above it, got {weight.tolist()}")
    scored = rewards.isfinite().all(1)
    columns = rewards.where(scored[:, None], torch.nan).unbind(1)
    placed = torch.stack([_placed(column, group_index) for column in columns], 1) @ (weight / weight.sum())
    chosen = (front & scored).to(rewards.dtype)
    on_front = group_counts(chosen.where(chosen > 0, torch.nan), group_index)
    share = group_counts(columns[0], group_index) / on_front.clamp(min=1)
    return (placed * share).where(chosen > 0, 0.0)


def channel_advantages(
    values: Sequence[Tensor],  # C of them, [B] float; NaN = could not be scored
    taking_part: Sequence[Tensor],  # C of them, [B] bool; the rows that a channel compares
    weights: Sequence[float],  # C of them
    group_index: Tensor,  # [B] int
    estimate: Callable[[Tensor, Tensor], Tensor],  # advantages [B] of values [B] and groups [B]; NaN takes no part
) -> Tensor:  # [B]
    """The weighted sum of the advantages of several channels, each normalised by itself (HDPO of Metis).

    Rows outside a channel are left out of its means and spreads, and have the channel's advantage 0; so do the rows of
    a group of which fewer than two take part. Policy gradients are linear in advantages, so with one update a rollout
    this is the sum of the channels' losses; the rewards themselves are never added.

    >>> from mmrl.algorithms.advantages import dr_grpo_advantages
    >>> right, calls, group = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([-1.0, 0.0, 0.0]), torch.zeros(3).long()
    >>> channel_advantages([calls], [right > 0], [2.0], group, dr_grpo_advantages)
    tensor([-1.,  1.,  0.])
    """
    if not len(values) == len(taking_part) == len(weights) or not weights:
        counts = f"{len(values)}, {len(taking_part)}, {len(weights)}"
        raise ValueError(f"expected as many values, masks and weights, one or more of each, got {counts}")
    sizes = check_shapes("B", group_index=group_index)
    total = torch.zeros(len(group_index))
    for value, part, weight in zip(values, taking_part, weights, strict=True):
        check_shapes("B", sizes, value=value, taking_part=part)
        check_dtypes("bool", taking_part=part)
        compared = value.where(part, torch.nan)
        enough = group_counts(compared, group_index) > 1
        advantages = estimate(compared, group_index)
        total = total + weight * advantages.where(part & enough & value.isfinite(), 0.0)
    return total


def learned_weight(
    weight: float,
    primary: Sequence[Tensor],  # the gradient of what counts, by parameter, after an update
    part: Sequence[Tensor],  # the gradient of a heuristic reward that the update contained, times `weight`
    rate: float,
    most: float,
) -> float:
    """The weight of a heuristic reward after a step of the outer problem, within [0, most] (BARFI, arXiv:2310.19007).

    The update theta' = theta + lr * (g_primary + weight * g_part) changes what counts by lr times the inner product
    of g_primary(theta') and g_part(theta) for each unit of the weight: the derivative of the outer objective through
    one step, without the Hessian of further ones. The step is `rate` times the cosine of the two, so that it does not
    depend on their scale; 0 where one of them is 0.

    >>> learned_weight(0.5, [torch.tensor([1.0, 0.0])], [torch.tensor([-2.0, 0.0])], rate=0.25, most=1.0)
    0.25
    """
    if len(primary) != len(part) or weight < 0 or rate < 0 or most <= 0:
        raise ValueError(f"expected gradients of the same parameters, and {weight=}, {rate=} >= 0 and {most=} > 0")
    inner = sum(float((a.double() * b.double()).sum()) for a, b in zip(primary, part, strict=True))
    norms = [math.sqrt(sum(float(each.double().square().sum()) for each in both)) for both in (primary, part)]
    cosine = inner / (norms[0] * norms[1]) if all(norms) else 0.0
    return min(most, max(0.0, weight + rate * cosine))


def lagrangian_advantages(
    objective: Tensor,  # [B] advantages of what is maximised
    constraints: Sequence[Tensor],  # C of them, [B] advantages of what is held above a threshold
    multipliers: Sequence[float],  # C of them, >= 0
) -> Tensor:  # [B]
    """(A + sum lambda_c A_c) / (1 + sum lambda_c), the Lagrangian's ascent direction (MVC-ZigAL, arXiv:2505.20107).

    Each advantage is normalised before they are added, so that a multiplier of 1 gives a constraint the say of the
    objective; the division keeps the step's size as multipliers grow.

    >>> lagrangian_advantages(torch.tensor([1.0, -1.0]), [torch.tensor([-1.0, 1.0])], [3.0])
    tensor([-0.5000,  0.5000])
    """
    if len(constraints) != len(multipliers) or any(m < 0 for m in multipliers):
        raise ValueError(f"expected one multiplier >= 0 for each of {len(constraints)} constraints, got {multipliers}")
    sizes = check_shapes("B", objective=objective)
    total = objective
    for each, multiplier in zip(constraints, multipliers, strict=True):
        check_shapes("B", sizes, constraint=each)
        total = total + multiplier * each
    return total / (1 + sum(multipliers))


def dual_ascent(multiplier: float, mean: float, at_least: float, rate: float, most: float) -> float:
    """The multiplier after a step up the dual: lambda + rate * (at_least - mean), kept within [0, most].

    It grows as long as the constraint is broken and falls to 0 while it holds with room to spare.

    >>> dual_ascent(0.5, mean=0.75, at_least=1.0, rate=2.0, most=5.0)
    1.0
    """
    return min(most, max(0.0, multiplier + rate * (at_least - mean)))


def _placed(values: Tensor, group_index: Tensor) -> Tensor:
    """[B] in [0, 1]: from the group's worst to its best; 0 where all are equal."""
    ids, inverse = torch.unique(group_index, return_inverse=True)
    low = values.new_full((ids.numel(),), torch.inf)
    low = low.scatter_reduce(0, inverse, values.where(values.isfinite(), torch.inf), "amin")[inverse]
    spread = group_spread(values, group_index)
    return ((values - low) / spread).where(spread > 0, 0.0).where(values.isfinite(), 0.0)
