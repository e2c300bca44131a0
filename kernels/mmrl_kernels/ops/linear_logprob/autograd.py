"""Rows of log-probs a chunk at a time, with a backward pass that computes the logits again or need not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmrl_kernels.ops.linear_logprob.head import Gradients, Head, chunk_buffer, compute_dtype, softmax_rows


def linear_log_probs(
    hidden: Tensor,  # [N, H]
    head: Head,
    targets: Tensor,  # [N] int64
    *,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:  # [N] with a graph, [N] without
    """What `linear_logprob_entropy` says, of checked arguments."""
    with_graph = torch.is_grad_enabled()  # inside of a Function it is off
    log_probs, entropies = _LinearLogProb.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, head, targets, entropy, with_graph, compute_dtype(hidden)
    )
    return log_probs, entropies


class _LinearLogProb(torch.autograd.Function):
    """Saves the operands, or with a frozen output layer the gradient of the hidden states for a slope of 1."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        targets: Tensor,
        entropy: bool,
        with_graph: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.head, ctx.dtype = replace(head, weight=weight[:0], bias=None), dtype
        needed = tuple(ctx.needs_input_grad[:3])
        ctx.ready = with_graph and needed == (True, False, False)
        with torch.autocast(hidden.device.type, enabled=False):
            log_probs, entropies, slopes = _forward(hidden, head.to(dtype), targets, entropy, ctx.ready)
        if ctx.ready:
            ctx.save_for_backward(slopes)
        else:
            ctx.save_for_backward(hidden, weight, bias, targets)
        if entropies is not None:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.ready:
            (slopes,) = ctx.saved_tensors
            return slopes.mul(slope[:, None]).to(slopes.dtype), *(None,) * 7
        hidden, weight, bias, targets = ctx.saved_tensors
        head = replace(ctx.head, weight=weight, bias=bias)
        needed = tuple(ctx.needs_input_grad[:3])
        with torch.autocast(hidden.device.type, enabled=False):
            sums = _backward(hidden, head.to(ctx.dtype), targets, slope, needed)
        return (
            sums.hidden,
            None if sums.weight is None else sums.weight.to(weight.dtype),
            None if sums.bias is None else sums.bias.to(bias.dtype),
            *(None,) * 5,
        )


def _forward(
    hidden: Tensor, head: Head, targets: Tensor, entropy: bool, ready: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Log-probs, entropies, and if `ready` d log-prob / d hidden of each row."""
    count, buffer = chunk_buffer(len(hidden), head, hidden.device)
    softmax = softmax_rows(buffer)
    sums = Gradients.zeros(hidden, head, (ready, False, False))
    parts, spreads = [], []
    for rows in torch.split(torch.arange(len(hidden), device=hidden.device), count):
        chunk = hidden[rows].to(buffer.dtype)
        logits = head.logits_(buffer[: len(rows)], chunk)
        log_probs, entropies = softmax(logits, targets[rows], entropy=entropy, residual=ready)
        parts.append(log_probs)
        if entropies is not None:
            spreads.append(entropies)
        if ready:
            sums.add_(head, rows, chunk, logits, torch.ones_like(log_probs))
    return torch.cat(parts), torch.cat(spreads) if spreads else None, sums.hidden


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
