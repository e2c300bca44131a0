"""Aggregation of the terms of decisions [B, T] into a loss: weights [B, T] such that it is sum(weights * terms).

So a loss is a sum over decisions, and any block of it can be backpropagated alone:

    weights = aggregation_weights(mask, "sequence")
    for t in range(T):  # a denoising step at a time: only one graph lives
        column = slice(t, t + 1)
        terms = clipped_policy_loss(log_probs(t), old_log_probs[:, column], ...).loss
        (weights[:, column] * terms).sum().backward()

Rows may be split over micro-batches and processes too: give each one the `total` of the whole update.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes

Aggregation = Literal["token", "sequence", "constant"]


def aggregation_total(
    mask: Tensor,  # [B, T] bool
    how: Aggregation,
) -> int:
    """Return the divisor of `aggregation_weights`: the number of decisions ("token"), or of rows that have any.

    Adds up over the micro-batches and processes of an update.
    """
    check_shapes("B T", mask=mask)
    check_dtypes("bool", mask=mask)
    return int(mask.sum() if how == "token" else mask.any(1).sum())


def aggregation_weights(
    mask: Tensor,  # [B, T] bool; all T decisions, even if columns are backpropagated one by one
    how: Aggregation,
    constant: float | None = None,
    total: int | None = None,
) -> Tensor:  # [B, T] float32, >= 0; 0 where masked
    """Weights such that the loss is sum(weights * terms); a block of decisions takes its block of weights.

    - `token`: the mean over all decisions of the batch; long rows count for more (DAPO, arXiv:2503.14476).
    - `sequence`: the mean over rows of the mean over each row's decisions (GRPO, arXiv:2402.03300).
    - `constant`: each row's sum over `constant` decisions, say the longest allowed, then the mean over rows
      (Dr. GRPO, arXiv:2503.20783): a row's length no longer scales its gradient. With constant = 1 the sum itself
      (LUSPO, arXiv:2602.05261).

    `total` is `aggregation_total` of the whole update, where `mask` is one micro-batch of it; None counts `mask`
    alone. A row without decisions has no weight and is not counted; to count it, as trl does, say total=B.

    >>> aggregation_weights(torch.tensor([[True, True], [True, False]]), "sequence")
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    """
    if (how == "constant") != (constant is not None):
        raise ValueError(f"constant: expected a number for how='constant' and none otherwise, got {how!r}, {constant}")
    if constant is not None and constant <= 0:
        raise ValueError(f"constant: expected a number > 0, got {constant}")
    if total is None:
        total = aggregation_total(mask, how)
    kept = mask.float()
    if how == "token":
        per_row = torch.ones_like(kept[:, :1])
    elif how == "sequence":
        per_row = kept.sum(1, keepdim=True).clamp(min=1)
    elif how == "constant" and constant is not None:
        per_row = torch.full_like(kept[:, :1], constant)
    else:
        raise ValueError(f"how: expected 'token', 'sequence' or 'constant', got {how!r}")
    return kept / per_row / max(total, 1)


def aggregate(
    terms: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    how: Aggregation,
    constant: float | None = None,
    total: int | None = None,
) -> Tensor:  # []
    """The weighted sum of terms: a loss where all decisions are at hand at once. Masked terms may hold anything."""
    check_shapes("B T", terms=terms, mask=mask)
    return (aggregation_weights(mask, how, constant, total) * terms.where(mask, 0.0)).sum()
