"""The promises of `linear_logprob`, and its backends."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl_kernels.registry import Backend, Op, needs_triton
from mmrl_kernels.spec import Cost, OpSpec, Tolerance

_HERE = "mmrl_kernels.ops.linear_logprob"


def _needs_triton(x: Tensor) -> str | None:
    return "x is float64" if x.dtype == torch.float64 else needs_triton(x)


OP = Op(
    "linear_logprob",
    (
        Backend("triton", f"{_HERE}.triton:softmax_rows", _needs_triton),
        Backend("reference", f"{_HERE}.reference:softmax_rows"),
    ),
)
"""The GEMMs are torch's in any case: a backend is the softmax between them."""

SPEC = OpSpec(
    name="linear_logprob",
    shapes={"hidden": "N H", "weight": "V H", "targets": "N", "bias": "V", "suppressed": "S"},
    tolerances={
        torch.float64: Tolerance(1e-12, 1e-12),
        torch.float32: Tolerance(2e-5, 1e-5),
        torch.bfloat16: Tolerance(0.02, 2**-7),  # of the largest logit: it is rounded to 8 bits
        torch.float16: Tolerance(0.003, 2**-10),
    },
    source="log softmax((h W^T + b) / T)[target]; its gradient in the logits is onehot(target) - softmax",
)


def cost(rows: int, width: int, vocabulary: int, itemsize: int, *, frozen: bool = False) -> Cost:
    """Return the cost of forward and backward: 4 GEMMs, or 2 where the output layer is `frozen`.

    The bytes are those of the operands and gradients read and written once; logits that leave the cache come on top.
    """
    gemms = 2 if frozen else 4
    operands = (rows * width + vocabulary * width) * itemsize
    gradients = rows * width * itemsize + (0 if frozen else vocabulary * width * 4)
    return Cost(flops=2.0 * gemms * rows * width * vocabulary, bytes=float(operands + gradients))
