"""What `sde_step_logprob` promises."""

from __future__ import annotations

import torch

from mmrl_kernels.spec import Cost, OpSpec, Tolerance

SPEC = OpSpec(
    name="sde_step_logprob",
    shapes={"x": "B D", "velocity": "B D", "next_x": "B D", "log_prob": "B", "mean": "B D"},
    tolerances={
        # Half-precision inputs are read exactly and computed in float32, so only the inputs' rounding is theirs.
        torch.float64: Tolerance(1e-12, 1e-12),
        torch.float32: Tolerance(2e-6, 2e-6),
        torch.bfloat16: Tolerance(2e-6, 2e-6),
        torch.float16: Tolerance(2e-6, 2e-6),
    },
    source="Gaussian log-density, mean over latent dimensions: Flow-GRPO arXiv:2505.05470, DanceGRPO arXiv:2505.07818, "
    "CPS arXiv:2509.05952 (minus the mean square), DDIM arXiv:2010.02502",
)


def cost(rows: int, dimensions: int, itemsize: int, training: bool = True) -> Cost:
    """Of scoring `rows` latents of `dimensions` numbers, each of x, velocity and x' of `itemsize` bytes.

    Forward: three reads and the mean's float32 write. Backward: the mean and x' are read, the gradient is written.
    """
    numbers = rows * dimensions
    flops, moved = 6 * numbers, numbers * (3 * itemsize + 4)
    if training:
        flops, moved = flops + 3 * numbers, moved + numbers * (4 + 2 * itemsize)
    return Cost(float(flops), float(moved))
