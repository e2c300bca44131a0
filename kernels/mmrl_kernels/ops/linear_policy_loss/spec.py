"""What `linear_policy_loss` promises."""

from __future__ import annotations

import torch

from mmrl_kernels.ops.linear_logprob.spec import SPEC as LINEAR_LOGPROB
from mmrl_kernels.spec import Cost, OpSpec

SPEC = OpSpec(
    name="linear_policy_loss",
    shapes={
        **LINEAR_LOGPROB.shapes,
        "weights": "N",
        "old_log_probs": "N",
        "advantages": "N",
        "sequence_index": "N",
        "reference_log_probs": "N",
    },
    tolerances={dtype: LINEAR_LOGPROB.tolerances[dtype] for dtype in (torch.float64, torch.float32, torch.bfloat16)},
    source="arXiv: PPO 1707.06347, DAPO 2503.14476, CISPO 2506.13585, GSPO 2507.18071, DPO 2305.18290; on logits h W^T",
)


def cost(rows: int, width: int, vocabulary: int, itemsize: int, *, frozen: bool, sequence: bool) -> Cost:
    """Of forward and backward: 3 GEMMs, a fourth for a `sequence` loss, and 2 where the output layer is `frozen`."""
    gemms = 2 if frozen else 3 + sequence
    operands = (rows * width + vocabulary * width) * itemsize
    gradients = rows * width * itemsize + (0 if frozen else vocabulary * width * 4)
    return Cost(flops=2.0 * gemms * rows * width * vocabulary, bytes=float(operands + gradients))
