"""Rows of log-probs in chunks, with a backward pass that recomputes the logits only where it must.

With a frozen output layer the forward pass computes the gradient of the hidden states for an incoming gradient of 1,
and the backward pass scales it. With a gradient hint all gradients are ready, and the backward pass checks the hint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmrl_kernels.ops.linear_logprob.head import Gradients, Head, chunk_buffer, compute_dtype, softmax_rows

_log = logging.getLogger(__name__)

GradHint = Callable[[Tensor, Tensor], Tensor]
"""(log-probs [n], their rows [n] int64) -> [n]: what the objective's derivative in these log-probs will be."""

CLOSE = 1e-5
"""The tolerance between the hint and the incoming gradient, relative to its largest entry: float32 rounding.

Formulas that differ only in small entries pass this check, so the hint must be the derivative of the loss itself.
"""


def linear_log_probs(
    hidden: Tensor,  # [N, H]
    head: Head,
    targets: Tensor,  # [N] int64
    *,
    entropy: bool,
    grad_hint: GradHint | None = None,
) -> tuple[Tensor, Tensor | None]:  # [N] with a graph, [N] without
    """Compute `linear_logprob_entropy` of checked arguments."""
    with_graph = torch.is_grad_enabled()  # inside of a Function it is off
    log_probs, entropies = _LinearLogProb.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, head, targets, entropy, grad_hint, with_graph, compute_dtype(hidden)
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
        grad_hint: GradHint | None,
        with_graph: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.head, ctx.dtype = replace(head, weight=weight[:0], bias=None), dtype
        needed = tuple(ctx.needs_input_grad[:3])
        ctx.frozen = needed == (True, False, False)
        grad_hint = None if ctx.frozen else grad_hint
        ready = needed if with_graph and (ctx.frozen or grad_hint is not None) else (False,) * 3
        with torch.autocast(hidden.device.type, enabled=False):
            log_probs, entropies, sums, ctx.foreseen = _forward(
                hidden, head.to(dtype), targets, entropy, ready, grad_hint
            )
        ctx.sums = None
        if ctx.frozen:
            ctx.save_for_backward(sums.hidden)
        else:
            ctx.save_for_backward(hidden, weight, bias, targets)
            ctx.sums = sums if any(ready) else None  # no saved tensors: they are given away, or dropped, before the end
        if entropies is not None:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.frozen:
            (slopes,) = ctx.saved_tensors
            return slopes.mul(slope[:, None]).to(slopes.dtype), *(None,) * 8
        hidden, weight, bias, targets = ctx.saved_tensors
        scale = None if ctx.sums is None else _proportion(slope, ctx.foreseen)
        if scale is not None:
            sums, ctx.sums = ctx.sums.scaled_(scale), None  # given away: a second backward pass computes anew
        else:
            if ctx.sums is not None:
                _tell_of_another()
            ctx.sums, head = None, replace(ctx.head, weight=weight, bias=bias)
            with torch.autocast(hidden.device.type, enabled=False):
                sums = _backward(hidden, head.to(ctx.dtype), targets, slope, tuple(ctx.needs_input_grad[:3]))
        return (
            None if sums.hidden is None else sums.hidden.to(hidden.dtype),
            None if sums.weight is None else sums.weight.to(weight.dtype),
            None if sums.bias is None else sums.bias.to(bias.dtype),
            *(None,) * 6,
        )


@cache
def _tell_of_another() -> None:
    _log.warning("linear_logprob: the incoming gradient differs from grad_hint, so logits are computed twice")


def _proportion(slope: Tensor, foreseen: Tensor) -> float | None:
    """Return the factor from the hint to the incoming gradient; None if they are not proportional."""
    if torch.equal(slope, foreseen):
        return 1.0
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
    grad_hint: GradHint | None,
) -> tuple[Tensor, Tensor | None, Gradients, Tensor | None]:
    """Log-probs, entropies, the gradients that are to be `ready`, and the slope they are of; None: of 1."""
    # The hint may still have to be scaled, and half precision would have lost it by then.
    wide = None if grad_hint is None else torch.promote_types(hidden.dtype, torch.float32)
    count, buffer = chunk_buffer(len(hidden), head, hidden.device)
    softmax = softmax_rows(buffer)
    sums = Gradients.zeros(hidden, head, ready, wide)
    parts, spreads, slopes = [], [], []
    for rows in torch.split(torch.arange(len(hidden), device=hidden.device), count):
        chunk = hidden[rows].to(buffer.dtype)
        logits = head.logits_(buffer[: len(rows)], chunk)
        log_probs, entropies = softmax(logits, targets[rows], entropy=entropy, residual=any(ready))
        parts.append(log_probs)
        if entropies is not None:
            spreads.append(entropies)
        if any(ready) and grad_hint is None:
            sums.add_(head, rows, chunk, logits, torch.ones_like(log_probs))
        elif any(ready) and grad_hint is not None:
            slope = grad_hint(log_probs, rows).to(log_probs.dtype)
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
