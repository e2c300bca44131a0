"""Layer norm and its modulation by torch's own layer-norm kernels, one sample at a time.

A sample's modulation is what LayerNorm calls its weight and bias: 1 + scale and shift, the same for all tokens. So
torch's kernels do all of it, and their backward pass adds up the gradients of both where it has the rows at hand, which
generated code does in a second pass down the columns. Differentiable once, as the other kernels are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmrl_kernels.ops.norm_modulate import reference

aten = torch.ops.aten


class _LayerNormModulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
        y = torch.empty_like(x)
        mean = torch.empty(*x.shape[:2], 1, dtype=gain.dtype, device=x.device)
        rstd = torch.empty_like(mean)
        for b in range(len(x)):
            aten.native_layer_norm.out(x[b], x.shape[2:], gain[b], shift[b], eps, out0=y[b], out1=mean[b], out2=rstd[b])
        ctx.save_for_backward(x, gain, shift, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, mean, rstd = ctx.saved_tensors
        dy, (dx, dgain, dshift) = dy.contiguous(), [torch.empty_like(t) for t in (x, gain, shift)]
        for b in range(len(x)):
            aten.native_layer_norm_backward.out(
                dy[b], x[b], x.shape[2:], mean[b], rstd[b], gain[b], shift[b], [True] * 3,
                out0=dx[b], out1=dgain[b], out2=dshift[b],
            )  # fmt: skip
        return dx, dgain, dshift, None


_apply = cast(Callable[..., Tensor], _LayerNormModulate.apply)


def norm_modulate(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, kind: reference.Kind = "layer", weight: Tensor | None = None
) -> Tensor:
    """As the reference, which RMS norms and tensors without elements are left to."""
    if kind == "rms" or not x.numel():
        return reference.norm_modulate(x, scale, shift, eps, kind, weight)
    exact = reference.exact(x)
    gain = 1 + scale.to(exact)
    if weight is not None:
        gain = gain * weight.to(exact)
    return _apply(x.contiguous(), gain, shift.to(exact).contiguous(), eps)
