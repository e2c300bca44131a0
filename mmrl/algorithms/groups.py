"""Statistics within groups: the G trajectories of one prompt.

Every function takes one value and one group id a row and gives each row its group's statistic back, so that
results combine row by row. Groups may be of any sizes and in any order, and ids need not be contiguous.

A value that is not finite could not be scored: it takes no part in any statistic, and is never read as zero.
Statistics are over the rows that are given: gather a batch that is spread over processes first.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes


def group_counts(
    values: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B] int64
    """Count the scored values in each row's group.

    >>> group_counts(torch.tensor([1.0, 2.0, torch.nan]), torch.tensor([7, 7, 9]))
    tensor([2, 2, 0])
    """
    inverse, groups = _dense(values, group_index)
    return inverse.new_zeros(groups).index_add(0, inverse, values.isfinite().long())[inverse]


def group_sum(
    values: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B]; 0 where no value of the group is scored
    """The sum over each row's group.

    >>> group_sum(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([7, 9, 7]))
    tensor([4., 5., 4.])
    """
    inverse, groups = _dense(values, group_index)
    return values.new_zeros(groups).index_add(0, inverse, values.where(values.isfinite(), 0.0))[inverse]


def group_mean(
    values: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B]; NaN where no value of the group is scored
    """The mean over each row's group.

    >>> group_mean(torch.tensor([1.0, 5.0, 3.0, torch.nan]), torch.tensor([7, 9, 7, 7]))
    tensor([2., 5., 2., 2.])
    """
    return group_sum(values, group_index) / group_counts(values, group_index)


def group_std(
    values: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
    ddof: Literal[0, 1],
) -> Tensor:  # [B], >= 0; NaN where a group has no more than ddof scored values
    """The standard deviation over each row's group, with divisor count - ddof.

    `ddof` has no default because peers differ silently: 0 is numpy's (flow_grpo), 1 is torch's (trl, DanceGRPO).
    Values that are all equal may give a few units of rounding rather than 0: ask `group_spread` for that.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof: expected 0 or 1, got {ddof}")
    divisor = group_counts(values, group_index) - ddof
    # From the differences, not from sums of squares: those cancel where the mean is far larger than the spread.
    squares = group_sum((values - group_mean(values, group_index)) ** 2, group_index)
    return (squares / divisor).sqrt().where(divisor > 0, math.nan)


def group_max(
    values: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B]; NaN where no value of the group is scored
    """The largest value of each row's group.

    >>> group_max(torch.tensor([1.0, 5.0, 3.0, torch.nan]), torch.tensor([7, 9, 7, 7]))
    tensor([3., 5., 3., 3.])
    """
    inverse, groups = _dense(values, group_index)
    lowest = values.new_full((groups,), -math.inf)
    largest = lowest.scatter_reduce(0, inverse, values.where(values.isfinite(), -math.inf), "amax")
    return largest.where(largest.isfinite(), math.nan)[inverse]


def group_spread(
    values: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B], >= 0
    """The largest minus the smallest value of each row's group: exactly 0 if all are equal, or fewer than two scored.

    >>> group_spread(torch.tensor([1.0, 5.0, 3.0, torch.nan]), torch.tensor([7, 9, 7, 7]))
    tensor([2., 0., 2., 2.])
    """
    spread = group_max(values, group_index) + group_max(-values, group_index)
    return spread.where(~spread.isnan(), 0.0)


def _dense(values: Tensor, group_index: Tensor) -> tuple[Tensor, int]:
    """Group ids as 0 .. groups - 1, and how many groups there are."""
    check_shapes("B", values=values, group_index=group_index)
    # Half precision would merge rewards; ids stay integers, since float32 merges ids above 2^24.
    check_dtypes("float32", values=values)
    check_dtypes("int", group_index=group_index)
    ids, inverse = torch.unique(group_index, return_inverse=True)
    return inverse, ids.numel()
