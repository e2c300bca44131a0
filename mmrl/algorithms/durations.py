"""Weights of trajectories by how long their actions took (Yang, He-Yueya and Liang, arXiv:2509.01684)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_shapes


def duration_weights(
    seconds: Tensor,  # [B] float, above 0; NaN = unknown
) -> Tensor:  # [B] float32, at least 0
    """Return each duration over the mean of the known ones; 0 where it is unknown.

    In a given time, an action that takes half as long is drawn, and learnt from, up to twice as often. The weight
    undoes it; division by the mean leaves the size of a gradient as it was.

    Raises:
        ValueError: a duration is not above 0.

    >>> duration_weights(torch.tensor([1.0, 1.0, 4.0]))
    tensor([0.5000, 0.5000, 2.0000])
    """
    check_shapes("B", seconds=seconds)
    known = seconds.isfinite()
    if (seconds[known] <= 0).any():
        raise ValueError(f"a duration is {float(seconds[known].min())} s; it is above 0")
    if not known.any():
        return torch.zeros(len(seconds))
    return (seconds / seconds[known].mean()).where(known, 0.0).float()
