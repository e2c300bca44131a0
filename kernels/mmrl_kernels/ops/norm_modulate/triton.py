"""The norm and its modulation in Triton: one row a program forward, a run of rows a program backward.

With n = (x - mean) rstd (mean = 0 for RMS), the sums over tokens S = Σ dy n and T = Σ dy are all that the gradients of
scale (weight · S), shift (T) and weight (Σ over the batch of (1 + scale) · S) need. Each program adds up its own rows,
and torch adds up the programs in a fixed order: no atomics, so runs repeat bit by bit.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def forward_kernel(
    x_ptr, scale_ptr, shift_ptr, weight_ptr, y_ptr, mean_ptr, rstd_ptr, eps, n_tokens, width,
    IS_LAYER: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    batch = row // n_tokens
    h = tl.arange(0, BLOCK)
    inside = h < width
    x = tl.load(x_ptr + row * width + h, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / width if IS_LAYER else 0.0
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    gain = 1.0 + tl.load(scale_ptr + batch * width + h, mask=inside, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        gain *= tl.load(weight_ptr + h, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + batch * width + h, mask=inside, other=0.0).to(tl.float32)
    y = centred * rstd * gain + shift
    tl.store(y_ptr + row * width + h, y.to(y_ptr.dtype.element_ty), mask=inside)
    if IS_LAYER:
        tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def backward_kernel(
    dy_ptr, x_ptr, scale_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, sums_ptr, n_tokens, width, rows,
    IS_LAYER: tl.constexpr, HAS_WEIGHT: tl.constexpr, WANTS_SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    h = tl.arange(0, BLOCK)
    inside = h < width
    gain = 1.0 + tl.load(scale_ptr + batch * width + h, mask=inside, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        gain *= tl.load(weight_ptr + h, mask=inside, other=0.0).to(tl.float32)
    sum_dy_n = tl.zeros([BLOCK], dtype=tl.float32)
    sum_dy = tl.zeros([BLOCK], dtype=tl.float32)
    for token in range(part * rows, tl.minimum((part + 1) * rows, n_tokens)):
        row = batch * n_tokens + token
        x = tl.load(x_ptr + row * width + h, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * width + h, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        mean = tl.load(mean_ptr + row) if IS_LAYER else 0.0
        normed = tl.where(inside, (x - mean) * rstd, 0.0)
        dn = dy * gain
        dx = dn - normed * (tl.sum(dn * normed, axis=0) / width)
        if IS_LAYER:
            dx -= tl.sum(dn, axis=0) / width
        tl.store(dx_ptr + row * width + h, (dx * rstd).to(dx_ptr.dtype.element_ty), mask=inside)
        if WANTS_SUMS:
            sum_dy_n += dy * normed
            sum_dy += dy
    if WANTS_SUMS:
        at = sums_ptr + ((batch * tl.num_programs(0) + part) * 2) * width + h
        tl.store(at, sum_dy_n, mask=inside)
        tl.store(at + width, sum_dy, mask=inside)


def launch(width: int) -> tuple[int, int]:
    """(BLOCK, warps) of a row."""
    block = triton.next_power_of_2(width)
    return block, min(max(block // 512, 1), 16)


def rows_a_program(batch: int, tokens: int) -> int:
    """So few that a GPU of 132 multiprocessors is full, so many that the partial sums stay small beside x."""
    return int(max(4, triton.cdiv(batch * tokens, 132 * 8)))


class _NormModulate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, eps: float, kind: str, weight: Tensor | None
    ) -> Tensor:
        batch, tokens, width = x.shape
        y = torch.empty_like(x)
        rstd = torch.empty(batch, tokens, dtype=torch.float32, device=x.device)
        mean = torch.empty_like(rstd) if kind == "layer" else rstd  # a pointer is due, read or not
        block, warps = launch(width)
        forward_kernel[(batch * tokens,)](
            x, scale, shift, x if weight is None else weight, y, mean, rstd, eps, tokens, width,
            IS_LAYER=kind == "layer", HAS_WEIGHT=weight is not None, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(x, scale, weight, mean, rstd)
        ctx.is_layer, ctx.shift_dtype = kind == "layer", shift.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, weight, mean, rstd = ctx.saved_tensors
        batch, tokens, width = x.shape
        rows = rows_a_program(batch, tokens)
        parts = triton.cdiv(tokens, rows)
        wants_sums = any(ctx.needs_input_grad[at] for at in (1, 2, 5))
        dx = torch.empty_like(x)
        sums = torch.empty(batch, parts, 2, width, dtype=torch.float32, device=x.device) if wants_sums else rstd
        block, warps = launch(width)
        backward_kernel[(parts, batch)](
            dy.contiguous(), x, scale, x if weight is None else weight, mean, rstd, dx, sums, tokens, width, rows,
            IS_LAYER=ctx.is_layer, HAS_WEIGHT=weight is not None, WANTS_SUMS=wants_sums, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        if not wants_sums:
            return dx, None, None, None, None, None
        sum_dy_n, sum_dy = sums.sum(1).unbind(1)  # [B, H] each
        dscale = sum_dy_n if weight is None else sum_dy_n * weight.float()
        dweight = None if weight is None else ((1 + scale.float()) * sum_dy_n).sum(0).to(weight.dtype)
        return dx, dscale.to(scale.dtype), sum_dy.to(ctx.shift_dtype), None, None, dweight


_apply = cast(Callable[..., Tensor], _NormModulate.apply)


def norm_modulate(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, kind: str = "layer", weight: Tensor | None = None
) -> Tensor:
    """As the reference."""
    weight = None if weight is None else weight.contiguous()
    return _apply(x.contiguous(), scale.contiguous(), shift.contiguous(), eps, kind, weight)
