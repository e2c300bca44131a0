"""What comes of a policy loss, and the objective that every kind of loss shares."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mmrl_kernels.ops.linear_policy_loss.losses import Decisions, SequenceLoss, TokenLoss, kl_k3


class PolicyLoss(NamedTuple):
    """The loss, and what the same logits say beside it. Rows of weight 0 read 0 and False."""

    loss: Tensor  # [] float32; carries the graph, as nothing else does
    log_probs: Tensor  # [N] of the targets, in nats
    entropy: Tensor  # [N] in nats
    clipped: Tensor  # [N] bool; a limit on the ratio cut this row's gradient off, or down
    kl: Tensor | None  # [N] k3 to the reference, >= 0; None without reference log-probs


def weighted_terms(
    log_probs: Tensor,  # [n] with a graph
    decisions: Decisions,  # of these rows
    loss: TokenLoss | SequenceLoss,
    kl_coef: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """[n] terms whose sum is the loss, with a graph; [n] bool, clipped; [n] KL."""
    terms, clipped = loss.terms(log_probs, decisions)
    kl = None if decisions.reference_log_probs is None else kl_k3(log_probs, decisions.reference_log_probs)
    if kl is not None and kl_coef:
        terms = terms + kl_coef * kl
    return decisions.weights * terms, clipped, kl


def spread(
    values: Tensor,  # [n]
    rows: Tensor,  # [n] int64
    size: int,
) -> Tensor:  # [size]; 0 elsewhere
    """Values of some rows, at their places among all."""
    return values if len(values) == size else values.new_zeros(size).index_copy_(0, rows, values)
