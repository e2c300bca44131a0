"""How likely one denoising step was: one float32 path for the rollout that draws x' and the replay that scores it.

    step = flow_sde(sigma=0.8, sigma_next=0.7, noise_level=0.7, first_sigma=0.96)
    next_x, log_prob = sde_step_sample(x, velocity, noise, step)
    replayed, mean = sde_step_logprob(x, velocity, next_x, step)  # bit-equal to log_prob where velocity is

The log-probability is the *mean* over latent dimensions, not their sum, as Flow-GRPO and its successors have it: the
density's own is D times that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmrl_kernels.ops.sde_step_logprob.coefficients import StepCoefficients, cps, dance_sde, ddim, flow_sde, noisy_ode
from mmrl_kernels.ops.sde_step_logprob.function import Kernels, score
from mmrl_kernels.registry import Backend, KernelError, Op, implementation, needs_compiler, needs_triton

__all__ = [
    "OP",
    "StepCoefficients",
    "cps",
    "dance_sde",
    "ddim",
    "flow_sde",
    "noisy_ode",
    "sde_step_logprob",
    "sde_step_sample",
]


def _triton_refusal(x: Tensor) -> str | None:
    return "x is float64, and the kernels compute in float32" if x.dtype == torch.float64 else needs_triton(x)


OP = Op(
    "sde_step_logprob",
    (
        Backend("triton", f"{__name__}.triton:kernels", _triton_refusal),
        Backend("compile", f"{__name__}.compiled:kernels", needs_compiler),
        Backend("reference", f"{__name__}.reference:kernels"),
    ),
)


def sde_step_logprob(
    x: Tensor,  # [B, ...] float of any kind
    velocity: Tensor,  # as x, of any float dtype: the model's output
    next_x: Tensor,  # as x, of any float dtype: what was drawn
    coefficients: StepCoefficients,
) -> tuple[Tensor, Tensor]:  # [B] float32; [B, ...] float32
    """Log-density of `next_x` under the step, a mean over latent dimensions, and the step's mean.

    Both are differentiable in the velocity, and the backward pass is written out:
    d log_prob / d velocity = velocity_coefficient (x' - mean) / (std² D). For CPS the first result is
    -mean((x' - mean)²), which is no log-density. float64 in, float64 out: for tests.

    Raises:
        KernelError: shapes differ, std is 0, or x or next_x asks for a gradient.
    """
    _check(coefficients, x=x, velocity=velocity, next_x=next_x)
    for name, tensor in (("x", x), ("next_x", next_x)):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise KernelError(f"{name} requires grad, and the step is differentiable in the velocity alone: detach it")
    kernels, c = _kernels(x), coefficients
    rows = _rows(x), _rows(velocity), _rows(next_x)
    log_prob, mean = score(kernels, *rows, c.x, c.velocity, *_line(c, x[0].numel()))
    return log_prob, mean.view(x.shape)


@torch.no_grad()
def sde_step_sample(
    x: Tensor,  # [B, ...] float of any kind
    velocity: Tensor,  # as x, of any float dtype
    noise: Tensor,  # as x, of any float dtype: standard normal
    coefficients: StepCoefficients,
) -> tuple[Tensor, Tensor]:  # [B, ...] in x's dtype; [B] float32
    """x' = mean + std noise rounded to x's dtype, and the log-probability of that; without gradients.

    One pass over the latent; the log-probability is of the rounded x', and bit-equal to `sde_step_logprob`'s, so that
    ratios are exactly 1 where the velocity is computed alike.

    Raises:
        KernelError: shapes differ, or std is 0.
    """
    _check(coefficients, x=x, velocity=velocity, noise=noise)
    kernels, c = _kernels(x), coefficients
    rows = _rows(x), _rows(velocity), _rows(noise)
    drawn, log_prob = kernels.sample(*rows, c.x, c.velocity, c.std, *_line(c, x[0].numel()))
    return drawn.view(x.shape), log_prob


def _line(c: StepCoefficients, d: int) -> tuple[float, float]:
    """What the sum of (x' - mean)² is multiplied with, and what is added, for the mean over d dimensions."""
    if not c.is_density:
        return -1 / d, 0.0
    return -0.5 / (c.std**2 * d), -math.log(c.std) - 0.5 * math.log(2 * math.pi)


def _kernels(x: Tensor) -> Kernels:
    kernels: Kernels = implementation(OP, x)()
    return kernels


def _rows(x: Tensor) -> Tensor:
    """[B, ...] -> [B, D], contiguous."""
    return x.reshape(x.shape[0], -1).contiguous()


def _check(coefficients: StepCoefficients, *, x: Tensor, **others: Tensor) -> None:
    if x.ndim < 2 or not x.numel() or not x.is_floating_point():
        raise KernelError(f"x: expected float latents [B, ...] that are not empty, got {x.dtype} {list(x.shape)}")
    for name, tensor in others.items():
        if tensor.shape != x.shape or tensor.device != x.device:
            raise KernelError(f"{name}: expected {list(x.shape)} on {x.device} as x is, got {list(tensor.shape)} on "
                              f"{tensor.device}")  # fmt: skip
    if not coefficients.std > 0:  # NaN too
        raise KernelError(f"the step's std is {coefficients.std}, so it decides nothing and has no log-probability: "
                          "leave it out of the decisions")  # fmt: skip
