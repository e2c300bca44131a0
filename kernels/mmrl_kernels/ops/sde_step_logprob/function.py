"""The step as a differentiable function, whoever computes its three parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Kernels:
    """What a backend brings; signatures as in `reference`, a and b plain floats.

    The score of `sample` is bit-equal to that of `forward` on the x' that it drew.
    """

    sample: Callable[..., tuple[Tensor, Tensor]]
    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., Tensor]


class _Score(torch.autograd.Function):
    # Kernels get detached tensors: torch.compile looks at the `.grad` of any other, and warns.

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        x: Tensor,
        velocity: Tensor,
        next_x: Tensor,
        a: float,
        b: float,
        slope: float,
        offset: float,
    ) -> tuple[Tensor, Tensor]:
        score, mean = kernels.forward(x.detach(), velocity.detach(), next_x.detach(), a, b, slope, offset)
        ctx.save_for_backward(next_x, mean)
        ctx.set_materialize_grads(False)
        ctx.kernels, ctx.b, ctx.slope, ctx.dtype = kernels, b, slope, velocity.dtype
        return score, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_score: Tensor | None, grad_mean: Tensor | None) -> tuple[Tensor | None, ...]:
        next_x, mean = (saved.detach() for saved in ctx.saved_tensors)
        if grad_score is None:  # only the mean was used
            grad = None if grad_mean is None else (grad_mean * ctx.b).to(ctx.dtype)
        else:
            grad = ctx.kernels.backward(grad_score, grad_mean, next_x, mean, ctx.b, ctx.slope, ctx.dtype)
        return None, None, grad, None, None, None, None, None


score = cast(Callable[..., tuple[Tensor, Tensor]], _Score.apply)
"""(kernels, x, velocity, x', a, b, slope, offset) -> (slope · sum of (x' - mean)² + offset [B], mean [B, D]).

Differentiable in the velocity alone. It keeps the mean and x' for the backward pass: a log-prob's gradient
b (x' - mean) / (std² D) needs no more.
"""
