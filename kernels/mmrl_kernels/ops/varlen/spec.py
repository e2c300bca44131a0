"""What `varlen_attention` promises."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl_kernels.spec import Cost, OpSpec, Tolerance

SPEC = OpSpec(
    name="varlen",
    shapes={"q": "T_q heads d", "k": "T_k kv_heads d", "v": "T_k kv_heads d", "result": "T_q heads d"},
    tolerances={
        torch.float64: Tolerance(1e-12, 1e-12),
        torch.float32: Tolerance(1e-5, 1e-5),
        torch.bfloat16: Tolerance(2e-2, 2e-2),
        torch.float16: Tolerance(2e-3, 2e-3),
    },
    source="FlashAttention-2, arXiv:2307.08691, through torch.nn.attention.varlen",
)


def cost(
    pairs: Sequence[tuple[int, int]],  # (queries, keys) of each sequence
    heads: int,
    kv_heads: int,
    head_size: int,
    itemsize: int,
    causal: bool,
    training: bool = True,
) -> Cost:
    """Of one call. A backward pass takes 2.5 times the products of a forward one, as flash attention recomputes."""
    seen = sum(q * k - q * (q - 1) / 2 if causal else q * k for q, k in pairs)
    flops = 4 * heads * head_size * seen * (3.5 if training else 1)
    queries, keys = sum(q for q, _ in pairs), sum(k for _, k in pairs)
    numbers = (2 * queries * heads + 2 * keys * kv_heads) * head_size
    return Cost(float(flops), float(numbers * itemsize * (3 if training else 1)))
