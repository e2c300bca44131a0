"""Sequence by sequence, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attention_by_sequence(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, causal: bool, scale: float | None
) -> Tensor:
    """As the public function, without its checks."""
    sizes_q, sizes_k = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    parts = zip(torch.split(q, sizes_q), torch.split(k, sizes_k), torch.split(v, sizes_k), strict=True)
    return torch.cat([_one(*part, causal=causal, scale=scale) for part in parts])


def _one(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:  # [t, heads, d] each
    n_q, n_k = len(q), len(k)
    if not n_q:
        return q
    blind = max(n_q - n_k, 0) if causal else n_q * (not n_k)  # queries that see no key
    seeing = q[blind:].movedim(1, 0)[None]  # [1, heads, t, d]
    mask = None
    if causal and n_q < n_k:
        mask = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q)
    if blind == n_q:
        return q.masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0.0)  # 0, and still in the graph
    out = F.scaled_dot_product_attention(
        seeing, k.movedim(1, 0)[None], v.movedim(1, 0)[None], attn_mask=mask, is_causal=causal and mask is None,
        scale=scale, enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return torch.cat([q.new_zeros(blind, *q.shape[1:]), out[0].movedim(0, 1)])
