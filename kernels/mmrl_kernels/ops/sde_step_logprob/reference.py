"""The step in plain torch. Rows are flattened: [B, D]; arithmetic is float32, or float64 where x is."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl_kernels.ops.sde_step_logprob.function import Kernels

Scalar = float | Tensor
"""A float, or a 0-d tensor for a compiler that must not compile each value anew."""


def sample(
    x: Tensor, velocity: Tensor, noise: Tensor, a: Scalar, b: Scalar, std: Scalar, slope: Scalar, offset: Scalar
) -> tuple[Tensor, Tensor]:
    """x' [B, D] in x's dtype, and its score [B]."""
    next_x = draw(x, velocity, noise, a, b, std)
    return next_x, forward(x, velocity, next_x, a, b, slope, offset)[0]


def draw(x: Tensor, velocity: Tensor, noise: Tensor, a: Scalar, b: Scalar, std: Scalar) -> Tensor:
    """x' [B, D] in x's dtype."""
    exact = arithmetic(x)
    return (x.to(exact) * a + velocity.to(exact) * b + noise.to(exact) * std).to(x.dtype)


def forward(
    x: Tensor, velocity: Tensor, next_x: Tensor, a: Scalar, b: Scalar, slope: Scalar, offset: Scalar
) -> tuple[Tensor, Tensor]:
    """The score [B], which is slope times the sum of (x' - mean)², and offset; and mean [B, D]."""
    exact = arithmetic(x)
    mean = x.to(exact) * a + velocity.to(exact) * b
    return (next_x.to(exact) - mean).square().sum(1) * slope + offset, mean


def backward(
    grad_score: Tensor,  # [B]
    grad_mean: Tensor | None,  # [B, D]
    next_x: Tensor,
    mean: Tensor,
    b: Scalar,
    slope: Scalar,
    dtype: torch.dtype,
) -> Tensor:
    """The velocity's gradient [B, D], in `dtype`."""
    grad = (mean - next_x.to(mean.dtype)) * (2 * slope * grad_score)[:, None]
    if grad_mean is not None:
        grad = grad + grad_mean
    return (grad * b).to(dtype)


def arithmetic(x: Tensor) -> torch.dtype:
    """The dtype to compute in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def kernels() -> Kernels:
    """The three functions as they stand."""
    return Kernels(sample, forward, backward)
