"""Latents row by row: what the losses on pictures and videos [B, ...] share."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_shapes


def at_least_float32(values: Tensor) -> Tensor:
    """`values`, widened to float32 if half precision: squared differences of bfloat16 velocities lose their digits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def row_mean(values: Tensor) -> Tensor:
    """[B, ...] -> [B]: the mean over all that is not the batch, in float32 or wider."""
    return at_least_float32(values).flatten(1).mean(1) if values.ndim > 1 else at_least_float32(values)


def sigma_per_row(
    sigma: float | Tensor,  # one noise level for all rows, or [B]
    like: Tensor,  # [B, ...]
) -> Tensor:  # [B, 1, ...], or [] for one level; float32 or wider
    """Noise levels, shaped to broadcast against `like`."""
    if not isinstance(sigma, Tensor):
        return like.new_tensor(sigma, dtype=torch.promote_types(like.dtype, torch.float32))
    check_shapes("B", {"B": like.shape[0]}, sigma=sigma)
    return at_least_float32(sigma).reshape(-1, *[1] * (like.ndim - 1))
