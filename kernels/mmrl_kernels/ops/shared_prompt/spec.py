"""The promises of shared-prompt attention, and its cost."""

from __future__ import annotations

import torch

from mmrl_kernels.ops.shared_prompt.layout import SharedPromptLayout
from mmrl_kernels.spec import Cost, OpSpec, Tolerance

SPEC = OpSpec(
    name="shared_prompt",
    shapes={"query": "N H D", "key": "N K D", "value": "N K D", "layout": "lengths of prompts and completions"},
    tolerances={
        torch.float64: Tolerance(1e-12, 1e-12),
        torch.float32: Tolerance(2e-5, 1e-5),
        torch.bfloat16: Tolerance(2e-2, 2e-2),
        torch.float16: Tolerance(3e-3, 3e-3),
    },
    source="softmax over two sets of keys, merged by log-sum-exp (arXiv:2205.14135, section 3); one prompt for a group",
)


def pairs(layout: SharedPromptLayout) -> int:
    """Queries times the keys that each looks at."""
    causal = sum(len(span) * (len(span) + 1) // 2 for span in layout.segments)
    return causal + sum(len(group.prompt) * len(group.answers) for group in layout.groups)


def cost(layout: SharedPromptLayout, heads: int, kv_heads: int, width: int, element: int) -> Cost:
    """Forward and backward: two products of matrices and five; q, k, v, out and four gradients, q, k, v twice."""
    flops = 2.0 * (2 + 5) * pairs(layout) * heads * width
    rows = layout.tokens * width * element
    return Cost(flops, float(rows * (5 * heads + 6 * kv_heads)))


def ideal_ratio(layout: SharedPromptLayout) -> float:
    """Return the ratio of computed tokens without and with sharing: N(P + R) / (P + N R)."""
    return layout.plain_tokens / layout.tokens
