"""A block's norm and its adaptive modulation in one pass over the activations, as adaLN-Zero DiT blocks have it.

hidden = norm_modulate(x, scale, shift, eps=1e-6)  # LayerNorm(x) (1 + scale) + shift
"""

from __future__ import annotations

from typing import cast, get_args

import torch
from torch import Tensor

from mmrl_kernels.ops.norm_modulate.reference import Kind
from mmrl_kernels.registry import Backend, KernelError, Op, implementation, needs_compiler, needs_triton

__all__ = ["OP", "norm_modulate"]

_WIDEST = 16384  # the Triton kernels hold a row in registers, the backward one several times over


def _triton_refusal(x: Tensor) -> str | None:
    if x.dtype == torch.float64:
        return "x is float64, and the kernels compute in float32"
    if x.shape[-1] > _WIDEST:
        return f"rows of {x.shape[-1]} numbers are wider than {_WIDEST}"
    return needs_triton(x)


def _native_refusal(x: Tensor) -> str | None:
    if x.device.type != "cpu":
        return f"x is on {x.device.type}"
    if torch.compiler.is_compiling():
        return "part of a larger graph, which fuses it further"
    return None


OP = Op(
    "norm_modulate",
    (
        # The compiler first: the kernel has not been seen to beat it, and inside a compiled model it fuses further.
        Backend("compile", f"{__name__}.compiled:norm_modulate", needs_compiler),
        Backend("triton", f"{__name__}.triton:norm_modulate", _triton_refusal),
        Backend("native", f"{__name__}.native:norm_modulate", _native_refusal),
        Backend("reference", f"{__name__}.reference:norm_modulate"),
    ),
)


def norm_modulate(
    x: Tensor,  # [B, N, H] float of any kind
    scale: Tensor,  # [B, H] any float dtype
    shift: Tensor,  # [B, H] any float dtype
    eps: float = 1e-6,
    kind: Kind = "layer",
    weight: Tensor | None = None,  # [H]: the norm's own gain, which RMSNorm mostly has
) -> Tensor:  # [B, N, H] in x's dtype
    """norm(x) · weight · (1 + scale) + shift, the norm over H: LayerNorm without a bias, or RMSNorm.

    Statistics and modulation are float32, and the result is rounded once (float64 for float64: tests). Differentiable
    in all four tensors. Source: DiT, arXiv:2212.09748; RMSNorm, arXiv:1910.07467.

    Raises:
        KernelError: shapes do not fit, or an unknown `kind`.
    """
    if x.ndim != 3 or not x.is_floating_point():
        raise KernelError(f"x: expected float activations [B, N, H], got {x.dtype} {list(x.shape)}")
    batch, _, width = x.shape
    for name, tensor in (("scale", scale), ("shift", shift)):
        if tensor.shape != (batch, width):
            raise KernelError(f"{name}: expected [B, H] = {[batch, width]}, got {list(tensor.shape)}")
    if weight is not None and weight.shape != (width,):
        raise KernelError(f"weight: expected [H] = {[width]}, got {list(weight.shape)}")
    if kind not in get_args(Kind):
        raise KernelError(f"kind {kind!r}: expected one of {', '.join(get_args(Kind))}")
    return cast(Tensor, implementation(OP, x)(x, scale, shift, eps, kind, weight))
