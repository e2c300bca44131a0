"""The reference through torch.compile. Scalars travel as tensors: one graph serves every step of a schedule."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mmrl_kernels.ops.sde_step_logprob import reference
from mmrl_kernels.ops.sde_step_logprob.function import Kernels


def sample(
    x: Tensor, velocity: Tensor, noise: Tensor, a: float, b: float, std: float, slope: float, offset: float
) -> tuple[Tensor, Tensor]:
    """As the reference, in one pass where x' is not rounded: the compiler would score it as it was before."""
    if x.dtype == reference.arithmetic(x):
        return _sample(x, velocity, noise, _scalars(x, a, b, std, slope, offset))
    next_x = _draw(x, velocity, noise, _scalars(x, a, b, std))
    return next_x, _score(x, velocity, next_x, _scalars(x, a, b, slope, offset))


def forward(
    x: Tensor, velocity: Tensor, next_x: Tensor, a: float, b: float, slope: float, offset: float
) -> tuple[Tensor, Tensor]:
    """As the reference."""
    return _forward(x, velocity, next_x, _scalars(x, a, b, slope, offset))


def backward(
    grad_score: Tensor,
    grad_mean: Tensor | None,
    next_x: Tensor,
    mean: Tensor,
    b: float,
    slope: float,
    dtype: torch.dtype,
) -> Tensor:
    """As the reference."""
    return _backward(grad_score, grad_mean, next_x, mean, _scalars(mean, b, slope), dtype)


def _scalars(x: Tensor, *values: float) -> Tensor:
    return torch.tensor(values, dtype=reference.arithmetic(x), device=x.device)


@torch.compile(fullgraph=True)
def _sample(x: Tensor, velocity: Tensor, noise: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
    a, b, std, slope, offset = scalars
    return reference.sample(x, velocity, noise, a, b, std, slope, offset)


@torch.compile(fullgraph=True)
def _draw(x: Tensor, velocity: Tensor, noise: Tensor, scalars: Tensor) -> Tensor:
    return reference.draw(x, velocity, noise, scalars[0], scalars[1], scalars[2])


@torch.compile(fullgraph=True)
def _score(x: Tensor, velocity: Tensor, next_x: Tensor, scalars: Tensor) -> Tensor:
    return reference.forward(x, velocity, next_x, scalars[0], scalars[1], scalars[2], scalars[3])[0]


@torch.compile(fullgraph=True)
def _forward(x: Tensor, velocity: Tensor, next_x: Tensor, scalars: Tensor) -> tuple[Tensor, Tensor]:
    return reference.forward(x, velocity, next_x, scalars[0], scalars[1], scalars[2], scalars[3])


@torch.compile(fullgraph=True)
def _backward(
    grad_score: Tensor, grad_mean: Tensor | None, next_x: Tensor, mean: Tensor, scalars: Tensor, dtype: torch.dtype
) -> Tensor:
    return reference.backward(grad_score, grad_mean, next_x, mean, scalars[0], scalars[1], dtype)


@cache
def kernels() -> Kernels:
    """The three functions, compiled at their first calls."""
    return Kernels(sample, forward, backward)
