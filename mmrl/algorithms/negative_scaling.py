"""Negative advantages by how reliable they are: an answer that was not the recorded one need not be wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_mean
from mmrl.checks import check_shapes


def scaled_negatives(
    advantages: Tensor,  # [B]
    rewards: Tensor,  # [B] float in [0, 1]; NaN = could not be scored
    group_index: Tensor,  # [B] int
    *,
    base: float = 0.5,
    slope: float = 1.5,
) -> Tensor:  # [B]
    """Multiply each negative advantage by base + slope * the mean reward of its group, limited to [0, 1].

    Success-adaptive negative gradient scaling of GUI-Libra (arXiv:2602.22190; EasyR1/verl/trainer/core_algos.py of its
    code, `grpo_weighted_positive_negative`, with these numbers in examples/gui_grpo.sh). Where one of several right
    actions is labelled, a group with few hits has missed, or has found another right action: its failures say little.
    The more answers hit the label, the surer it is that the others are wrong.

    >>> rewards, group = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4).long()
    >>> scaled_negatives(torch.tensor([1.5, -0.5, -0.5, -0.5]), rewards, group)
    tensor([ 1.5000, -0.4375, -0.4375, -0.4375])
    """
    check_shapes("B", advantages=advantages, rewards=rewards, group_index=group_index)
    factor = (base + slope * group_mean(rewards, group_index)).clamp(0.0, 1.0)
    return torch.where(advantages < 0, advantages * factor, advantages)
