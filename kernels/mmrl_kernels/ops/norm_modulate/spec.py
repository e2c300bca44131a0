"""What `norm_modulate` promises."""

from __future__ import annotations

import torch

from mmrl_kernels.spec import Cost, OpSpec, Tolerance

SPEC = OpSpec(
    name="norm_modulate",
    shapes={"x": "B N H", "scale": "B H", "shift": "B H", "weight": "H", "result": "B N H"},
    tolerances={
        torch.float64: Tolerance(1e-12, 1e-12),
        torch.float32: Tolerance(1e-5, 1e-5),
        torch.bfloat16: Tolerance(1e-5, 2**-8),  # one rounding of the result
        torch.float16: Tolerance(1e-5, 2**-11),
    },
    source="adaLN-Zero: DiT arXiv:2212.09748; RMSNorm: arXiv:1910.07467",
)


def cost(batch: int, tokens: int, width: int, itemsize: int, training: bool = True) -> Cost:
    """Of one call. Forward: x is read, the result written. Backward: x and its gradient are read, x's is written."""
    numbers = batch * tokens * width
    flops, moved = 8 * numbers, 2 * numbers * itemsize
    if training:
        flops, moved = flops + 14 * numbers, moved + 3 * numbers * itemsize
    return Cost(float(flops), float(moved))
