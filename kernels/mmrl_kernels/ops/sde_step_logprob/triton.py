"""The step in Triton: one pass over the latents a call, partial sums added up in a fixed order, no atomics."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmrl_kernels.ops.sde_step_logprob.function import Kernels

BLOCK = 2048  # numbers a program: 16 a thread with four warps, and enough programs for a small latent


@triton.jit
def sample_kernel(x_ptr, velocity_ptr, noise_ptr, next_ptr, partial_ptr, a, b, std, d, BLOCK: tl.constexpr):
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    at = row * d + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    velocity = tl.load(velocity_ptr + at, mask=inside, other=0.0).to(tl.float32)
    noise = tl.load(noise_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.fma(velocity, b, x * a)
    drawn = tl.fma(noise, std, mean).to(next_ptr.dtype.element_ty)
    tl.store(next_ptr + at, drawn, mask=inside)
    residual = tl.where(inside, drawn.to(tl.float32) - mean, 0.0)
    tl.store(partial_ptr + row * tl.num_programs(0) + block, tl.sum(residual * residual, axis=0))


@triton.jit
def forward_kernel(x_ptr, velocity_ptr, next_ptr, mean_ptr, partial_ptr, a, b, d, BLOCK: tl.constexpr):
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    at = row * d + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    velocity = tl.load(velocity_ptr + at, mask=inside, other=0.0).to(tl.float32)
    following = tl.load(next_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.fma(velocity, b, x * a)
    tl.store(mean_ptr + at, mean, mask=inside)
    residual = tl.where(inside, following - mean, 0.0)
    tl.store(partial_ptr + row * tl.num_programs(0) + block, tl.sum(residual * residual, axis=0))


@triton.jit
def backward_kernel(
    grad_score_ptr,
    grad_mean_ptr,
    next_ptr,
    mean_ptr,
    grad_ptr,
    b,
    slope,
    d,
    HAS_MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    at = row * d + column
    following = tl.load(next_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0)
    grad = (mean - following) * (2 * slope * tl.load(grad_score_ptr + row))
    if HAS_MEAN:
        grad += tl.load(grad_mean_ptr + at, mask=inside, other=0.0)
    tl.store(grad_ptr + at, (grad * b).to(grad_ptr.dtype.element_ty), mask=inside)


def sample(
    x: Tensor, velocity: Tensor, noise: Tensor, a: float, b: float, std: float, slope: float, offset: float
) -> tuple[Tensor, Tensor]:
    """As the reference; all [B, D] and contiguous."""
    rows, d = x.shape
    next_x = torch.empty_like(x)
    blocks = triton.cdiv(d, BLOCK)
    partial = torch.empty(rows, blocks, dtype=torch.float32, device=x.device)
    sample_kernel[(blocks, rows)](x, velocity, noise, next_x, partial, a, b, std, d, BLOCK=BLOCK)
    return next_x, partial.sum(1) * slope + offset


def forward(
    x: Tensor, velocity: Tensor, next_x: Tensor, a: float, b: float, slope: float, offset: float
) -> tuple[Tensor, Tensor]:
    """As the reference; all [B, D] and contiguous."""
    rows, d = x.shape
    mean = torch.empty_like(x, dtype=torch.float32)
    blocks = triton.cdiv(d, BLOCK)
    partial = torch.empty(rows, blocks, dtype=torch.float32, device=x.device)
    forward_kernel[(blocks, rows)](x, velocity, next_x, mean, partial, a, b, d, BLOCK=BLOCK)
    return partial.sum(1) * slope + offset, mean


def backward(
    grad_score: Tensor,
    grad_mean: Tensor | None,
    next_x: Tensor,
    mean: Tensor,
    b: float,
    slope: float,
    dtype: torch.dtype,
) -> Tensor:
    """As the reference; all [B, D] and contiguous."""
    rows, d = mean.shape
    grad = torch.empty_like(mean, dtype=dtype)
    given = mean if grad_mean is None else grad_mean.contiguous()  # a pointer is due, read or not
    backward_kernel[(triton.cdiv(d, BLOCK), rows)](
        grad_score.contiguous(), given, next_x, mean, grad, b, slope, d, HAS_MEAN=grad_mean is not None, BLOCK=BLOCK
    )
    return grad


def kernels() -> Kernels:
    """The three functions."""
    return Kernels(sample, forward, backward)
