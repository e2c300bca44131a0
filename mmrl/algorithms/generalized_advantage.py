"""Advantages from a critic: generalised advantage estimation, and the critic's loss (PPO, arXiv:1707.06347)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes


def generalized_advantages(
    rewards: Tensor,  # [B, T] float, of each decision
    values: Tensor,  # [B, T] float; the critic's estimate of the return from before each decision
    mask: Tensor,  # [B, T] bool; False = not a decision: its reward and value are ignored, and time passes it by
    discount: float,  # gamma, in [0, 1]
    trace: float,  # lambda, in [0, 1]
) -> tuple[Tensor, Tensor]:  # advantages and returns, [B, T] each; 0 outside of the mask
    """Return advantages A_t = sum_l (discount * trace)^l delta_{t+l} and returns A_t + V_t (arXiv:1506.02438).

    delta_t = r_t + discount * V_{t+1} - V_t, and V is 0 after the last decision of a row.

    >>> rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.25, 0.5]])
    >>> advantages, returns = generalized_advantages(rewards, values, torch.ones(1, 2).bool(), 1.0, 0.5)
    >>> advantages, returns
    (tensor([[0.5000, 0.5000]]), tensor([[0.7500, 1.0000]]))
    """
    sizes = check_shapes("B T", rewards=rewards)
    check_shapes("B T", sizes, values=values, mask=mask)
    check_dtypes("bool", mask=mask)
    for name, number in (("discount", discount), ("trace", trace)):
        if not 0 <= number <= 1:
            raise ValueError(f"{name}: expected a number in [0, 1], got {number}")
    found = torch.zeros_like(values)
    after, following = values.new_zeros(len(values)), values.new_zeros(len(values))
    for step in reversed(range(values.shape[1])):
        here = mask[:, step]
        delta = rewards[:, step] + discount * following - values[:, step]
        advantage = delta + discount * trace * after
        found[:, step] = advantage.where(here, 0.0)
        after, following = advantage.where(here, after), values[:, step].where(here, following)
    return found, (found + values).where(mask, 0.0)


def whitened(
    values: Tensor,  # [N] float
) -> Tensor:  # [N]
    """Return values with mean 0 and standard deviation 1; a single one, or equal ones, become 0.

    >>> whitened(torch.tensor([1.0, 3.0]))
    tensor([-0.7071,  0.7071])
    """
    if len(values) < 2:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std() + 1e-8)


@dataclass(frozen=True)
class ValueLoss:
    """The terms of a critic's loss, [B, T] each."""

    loss: Tensor  # float, with a graph
    clipped: Tensor  # bool; the value left the range around the old one


def value_loss(
    values: Tensor,  # [B, T] float, with a graph
    old: Tensor,  # [B, T] float; the values that advantages were computed from
    returns: Tensor,  # [B, T] float
    clip: float | None,  # None: no bound
) -> ValueLoss:
    """Return half the squared error of each value, or with `clip` the larger one of it and that of the clipped value.

    A value that has moved further than `clip` from the old one is clipped there, so that an update gains nothing by
    moving on (PPO's baselines).

    >>> value_loss(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 2), torch.ones(1, 2), clip=0.5).loss
    tensor([[0.5000, 0.5000]])
    """
    sizes = check_shapes("B T", values=values)
    check_shapes("B T", sizes, old=old, returns=returns)
    loss = 0.5 * (values - returns).square()
    if clip is None:
        return ValueLoss(loss, torch.zeros_like(loss, dtype=torch.bool))
    near = values.clamp(old - clip, old + clip)  # to the bit the value itself, where it is within
    bounded = 0.5 * (near - returns).square()
    return ValueLoss(torch.maximum(loss, bounded), bounded > loss)
