"""Attention in parts: outputs with their log-sum-exp, and how two parts become one.

Softmax over two sets of keys is a mixture of the softmaxes over each, weighed by their sums of exponentials. In the
backward pass each part is given the *merged* output and log-sum-exp, and its gradients are then those of the whole.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def attend(
    query: Tensor,  # [B, H, L, D]
    key: Tensor,  # [B, H, S, D]
    value: Tensor,  # [B, H, S, D]
    causal: bool,
    scale: float,
    hidden: Tensor | None = None,  # [B, 1, 1, S] bool; True masks this key for all queries
) -> tuple[Tensor, Tensor]:  # [B, H, L, D], and [B, H, L] in at least float32: log-sum-exp of the scores
    """Softmax attention of one part."""
    if query.device.type == "cpu":
        mask = None if hidden is None else torch.zeros_like(hidden, dtype=query.dtype).masked_fill(hidden, -torch.inf)
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return cast(tuple[Tensor, Tensor], found)
    scores = _scores(query, key, causal, scale)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    normaliser = scores.logsumexp(-1)
    weights = (scores - normaliser[..., None]).exp()
    return (weights.to(value.dtype) @ value), normaliser


def attend_backward(
    gradient: Tensor,  # [B, H, L, D] of the merged output
    query: Tensor,  # [B, H, L, D]
    key: Tensor,  # [B, H, S, D]
    value: Tensor,  # [B, H, S, D]
    out: Tensor,  # [B, H, L, D] merged
    normaliser: Tensor,  # [B, H, L] merged
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # of query, key and value
    """Return one part's contribution to the gradients of attention over all parts."""
    if query.device.type == "cpu":
        # The kernel takes the log-sum-exp in the strides that its forward pass gives.
        laid = normaliser.transpose(1, 2).contiguous().transpose(1, 2)
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, out, laid, 0.0, causal, scale=scale
        )
        return cast(tuple[Tensor, Tensor, Tensor], found)
    weights = (_scores(query, key, causal, scale) - normaliser[..., None]).exp()
    wide, grad = weights.dtype, gradient.to(weights.dtype)
    along = (grad * out.to(wide)).sum(-1, keepdim=True)
    of_scores = (weights * (grad @ value.to(wide).mT - along) * scale).to(key.dtype)
    return of_scores @ key, of_scores.mT @ query, weights.to(value.dtype).mT @ gradient


def merge(
    out: Tensor,  # [..., D]
    normaliser: Tensor,  # [...]
    more: Tensor,  # [..., D]
    its_normaliser: Tensor,  # [...]
) -> tuple[Tensor, Tensor]:  # [..., D], [...]
    """Attention over both sets of keys, from attention over each."""
    both = torch.logaddexp(normaliser, its_normaliser)
    share, its_share = (normaliser - both).exp()[..., None], (its_normaliser - both).exp()[..., None]
    return (out * share + more * its_share).to(out.dtype), both


def _scores(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    scores = (query @ key.mT).to(torch.promote_types(query.dtype, torch.float32)) * scale
    if causal:
        length, keys = scores.shape[-2:]
        scores = scores.masked_fill(scores.new_ones(length, keys, dtype=torch.bool).triu(1), -torch.inf)
    return scores
