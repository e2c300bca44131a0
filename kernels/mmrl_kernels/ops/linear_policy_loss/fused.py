"""Token losses in one pass: a chunk's logits become its loss and its share of every gradient, and are gone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmrl_kernels.ops.linear_logprob.head import Gradients, Head, chunk_buffer, compute_dtype, softmax_rows
from mmrl_kernels.ops.linear_policy_loss.losses import Decisions, TokenLoss
from mmrl_kernels.ops.linear_policy_loss.result import PolicyLoss, spread, weighted_terms


def fused_policy_loss(
    hidden: Tensor,  # [N, H]
    head: Head,
    targets: Tensor,  # [N] int64
    loss: TokenLoss,
    decisions: Decisions,
    kl_coef: float,
) -> PolicyLoss:
    """What `linear_policy_loss` says, of checked arguments."""
    needed = [t is not None and t.requires_grad for t in (hidden, head.weight, head.bias)]
    if not torch.is_grad_enabled():
        needed = [False] * 3
    parts = _FusedPolicyLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, head, targets, loss, decisions, kl_coef, tuple(needed), compute_dtype(hidden)
    )
    return PolicyLoss(*parts)


class _FusedPolicyLoss(torch.autograd.Function):
    """The gradients are ready when the loss is: the backward pass scales them in place and hands them over."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        targets: Tensor,
        loss: TokenLoss,
        decisions: Decisions,
        kl_coef: float,
        needed: tuple[bool, bool, bool],
        dtype: torch.dtype,
    ) -> tuple[Tensor | None, ...]:
        with torch.autocast(hidden.device.type, enabled=False):
            result, sums = _one_pass(hidden, head.to(dtype), targets, loss, decisions, kl_coef, needed)
        # In the dtypes that they are due in: what the backward pass returns becomes `.grad` without another copy.
        ctx.save_for_backward(
            sums.hidden,
            None if sums.weight is None else sums.weight.to(weight.dtype),
            None if sums.bias is None or bias is None else sums.bias.to(bias.dtype),
        )
        ctx.spent = False
        ctx.mark_non_differentiable(*(each for each in result[1:] if each is not None))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.spent:
            raise RuntimeError(
                "linear_policy_loss hands its gradients over at the first backward pass and keeps no copy; "
                "call it again for a second one"
            )
        ctx.spent = True
        return *(None if each is None else each.mul_(slope) for each in ctx.saved_tensors), *(None,) * 7


def _one_pass(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    loss: TokenLoss,
    decisions: Decisions,
    kl_coef: float,
    needed: tuple[bool, bool, bool],
) -> tuple[tuple[Tensor | None, ...], Gradients]:
    kept = decisions.weights.nonzero()[:, 0]
    count, buffer = chunk_buffer(len(kept), head, hidden.device)
    softmax = softmax_rows(buffer)
    sums = Gradients.zeros(hidden, head, needed)
    chunks = []
    for rows in torch.split(kept, count):
        chunk, known = hidden[rows].to(buffer.dtype), decisions.at(rows)
        logits = head.logits_(buffer[: len(rows)], chunk)
        log_probs, entropy = softmax(logits, targets[rows], entropy=True, residual=any(needed))
        terms, clipped, kl, slope = _chunk_loss(log_probs, known, loss, kl_coef)
        if any(needed):
            sums.add_(head, rows, chunk, logits, slope)
        chunks.append((terms, log_probs, entropy, clipped, kl))
    objective, *others = (None if parts[0] is None else torch.cat(parts) for parts in zip(*chunks, strict=True))
    assert objective is not None
    return (objective.sum(), *(None if each is None else spread(each, kept, len(hidden)) for each in others)), sums


def _chunk_loss(
    log_probs: Tensor, decisions: Decisions, loss: TokenLoss, kl_coef: float
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """[n] weighted terms, [n] bool, [n] KL, and [n] the objective's derivative in the log-probs."""
    with torch.enable_grad():
        free = log_probs.detach().requires_grad_()
        objective, clipped, kl = weighted_terms(free, decisions, loss, kl_coef)
        (slope,) = torch.autograd.grad(objective.sum(), free)
    return objective.detach(), clipped, None if kl is None else kl.detach(), slope
