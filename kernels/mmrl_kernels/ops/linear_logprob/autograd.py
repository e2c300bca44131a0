"""Rows of log-probs a chunk at a time, with a backward pass that computes the logits again or need not.

It need not where the output layer is frozen: then the gradient of the hidden states is that of a slope of 1, times what
comes in. Nor where the slope was foreseen: then all gradients are ready, and only looked at once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmrl_kernels.ops.linear_logprob.head import Gradients, Head, chunk_buffer, compute_dtype, softmax_rows

Foresee = Callable[[Tensor, Tensor], Tensor]
"""(log-probs [n], their rows [n] int64) -> [n]: what the objective's derivative in these log-probs will be."""

CLOSE = 1e-5
"""How far the slope that comes may be from the foreseen one, of its largest number: float32 rounding of one formula."""


def linear_log_probs(
    hidden: Tensor,  # [N, H]
    head: Head,
    targets: Tensor,  # [N] int64
    *,
    entropy: bool,
    foresee: Foresee | None = None,
) -> tuple[Tensor, Tensor | None]:  # [N] with a graph, [N] without
    """What `linear_logprob_entropy` says, of checked arguments."""
    with_graph = torch.is_grad_enabled()  # inside of a Function it is off
    log_probs, entropies = _LinearLogProb.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, head, targets, entropy, foresee, with_graph, compute_dtype(hidden)
    )
    return log_probs, entropies


class _LinearLogProb(torch.autograd.Function):
    """Saves the operands, and what of the gradients is ready."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        targets: Tensor,
        entropy: bool,
        foresee: Foresee | None,
        with_graph: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.head, ctx.dtype = replace(head, weight=weight[:0], bias=None), dtype
        needed = tuple(ctx.needs_input_grad[:3])
        ctx.frozen = needed == (True, False, False)
        if ctx.frozen:
            foresee = _one
        ready = needed if with_graph and foresee is not None else (False,) * 3
        with torch.autocast(hidden.device.type, enabled=False):
            log_probs, entropies, ctx.sums, ctx.foreseen = _forward(
                hidden, head.to(dtype), targets, entropy, ready, foresee or _one
            )
        ctx.ready = any(ready)
        ctx.save_for_backward(*(() if ctx.frozen else (hidden, weight, bias, targets)))
        if entropies is not None:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.frozen:
            return ctx.sums.hidden.mul(slope[:, None]).to(ctx.sums.hidden.dtype), *(None,) * 8
        hidden, weight, bias, targets = ctx.saved_tensors
        scale = _proportion(slope, ctx.foreseen) if ctx.ready else None
        if scale is not None:
            sums, ctx.ready, ctx.sums = ctx.sums.scaled_(scale), False, None  # handed over: a second pass computes anew
        else:
            head = replace(ctx.head, weight=weight, bias=bias)
            with torch.autocast(hidden.device.type, enabled=False):
                sums = _backward(hidden, head.to(ctx.dtype), targets, slope, tuple(ctx.needs_input_grad[:3]))
        return (
            sums.hidden,
            None if sums.weight is None else sums.weight.to(weight.dtype),
            None if sums.bias is None else sums.bias.to(bias.dtype),
            *(None,) * 6,
        )


def _one(log_probs: Tensor, rows: Tensor) -> Tensor:
    return torch.ones_like(log_probs)


def _proportion(slope: Tensor, foreseen: Tensor) -> float | None:
    """What the foreseen slope is to be multiplied with, as a loss may be scaled; None: it is not this one."""
    if torch.equal(slope, foreseen):
        return 1.0
    if not len(slope):
        return None
    largest = foreseen.abs().argmax()
    scale = slope[largest] / foreseen[largest]
    off = (slope - scale * foreseen).abs().max()
    return scale.item() if bool(off <= CLOSE * slope[largest].abs()) else None


def _forward(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    entropy: bool,
    ready: tuple[bool, bool, bool],
    slope_of: Foresee,
) -> tuple[Tensor, Tensor | None, Gradients, Tensor | None]:
    """Log-probs, entropies, the gradients that are to be `ready`, and of which slope they are."""
    count, buffer = chunk_buffer(len(hidden), head, hidden.device)
    softmax = softmax_rows(buffer)
    sums = Gradients.zeros(hidden, head, ready)
    parts, spreads, slopes = [], [], []
    for rows in torch.split(torch.arange(len(hidden), device=hidden.device), count):
        chunk = hidden[rows].to(buffer.dtype)
        logits = head.logits_(buffer[: len(rows)], chunk)
        log_probs, entropies = softmax(logits, targets[rows], entropy=entropy, residual=any(ready))
        parts.append(log_probs)
        if entropies is not None:
            spreads.append(entropies)
        if any(ready):
            slope = slope_of(log_probs, rows)
            slopes.append(slope)
            moved = slope.nonzero()[:, 0]
            if len(moved) == len(rows):
                sums.add_(head, rows, chunk, logits, slope)
            else:
                sums.add_(head, rows[moved], chunk[moved], logits[moved], slope[moved])
    return torch.cat(parts), torch.cat(spreads) if spreads else None, sums, torch.cat(slopes) if slopes else None


def _backward(hidden: Tensor, head: Head, targets: Tensor, slope: Tensor, needed: tuple[bool, ...]) -> Gradients:
    sums = Gradients.zeros(hidden, head, (needed[0], needed[1], needed[2]))
    moved = slope.nonzero()[:, 0]
    count, buffer = chunk_buffer(len(moved), head, hidden.device)
    softmax = softmax_rows(buffer)
    for rows in torch.split(moved, count):
        chunk = hidden[rows].to(buffer.dtype)
        logits = head.logits_(buffer[: len(rows)], chunk)
        softmax(logits, targets[rows], entropy=False, residual=True)
        sums.add_(head, rows, chunk, logits, slope[rows])
    return sums
