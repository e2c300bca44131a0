"""`norm_modulate` against the composition that DiT blocks run: the norm, then `x * (1 + scale) + shift`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lines import Line
from measure import compare
from torch import Tensor

from mmrl_kernels.ops.norm_modulate import OP

GATE = 1.5
CASES = {  # name: (B, N, H); SD3 medium at 512 and at 1024 px, a small DiT
    "DiT-S 256 tokens": (8, 256, 384),
    "SD3-M 1024 tokens": (2, 1024, 1536),
    "SD3-M 4096 tokens": (2, 4096, 1536),
}


def lines(device: str, smoke: bool) -> list[Line]:
    """Forward with backward, in float32 on a CPU and in bfloat16 on a GPU, for both norms."""
    cases = list(CASES.items())[:1] if smoke else list(CASES.items())
    return [line for name, sizes in cases for kind in ("layer", "rms") for line in _case(name, sizes, kind, device)]


def eager(x: Tensor, scale: Tensor, shift: Tensor, eps: float, kind: str, weight: Tensor | None) -> Tensor:
    """As diffusers' AdaLayerNormZero and its kin compute it."""
    shape = (x.shape[-1],)
    normed = F.layer_norm(x, shape, weight, None, eps) if kind == "layer" else F.rms_norm(x, shape, weight, eps)
    return normed * (1 + scale[:, None]) + shift[:, None]


def _case(name: str, sizes: tuple[int, int, int], kind: str, device: str) -> list[Line]:
    batch, tokens, width = sizes
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x, grad = (torch.randn(batch, tokens, width, device=device, dtype=dtype) for _ in range(2))
    scale, shift = (torch.randn(batch, width, device=device, dtype=dtype) for _ in range(2))
    weight = torch.randn(width, device=device, dtype=dtype) if kind == "rms" else None
    given = [t.requires_grad_() for t in (x, scale, shift, weight) if t is not None]
    functions = {"eager": eager} | {
        backend.name: backend.load() for backend in OP.backends if _takes_part(backend.name, kind, device)
    }

    def call(function):
        return torch.autograd.grad(function(x, scale, shift, 1e-6, kind, weight), given, grad)

    due = call(eager)
    for function in functions.values():
        for got, expected in zip(call(function), due, strict=True):
            tolerance = 1e-3 if dtype == torch.float32 else 5e-2
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    measured = compare({n: (lambda f=f: call(f)) for n, f in functions.items()}, device=device)
    case, peak = f"{name}, {kind}, forward + backward", measured.pop("eager").peak_mib
    return [
        Line("norm_modulate", case, n, "eager", m.seconds, m.ratio, m.peak_mib, peak, *_gate(n, m.ratio, device))
        for n, m in measured.items()
    ]


def _takes_part(backend: str, kind: str, device: str) -> bool:
    if backend == "native":
        return device == "cpu" and kind == "layer"
    return backend != "triton" or device != "cpu"


def _gate(candidate: str, ratio: float, device: str) -> tuple[str | None, bool | None]:
    if candidate != "compile" or device != "cpu":
        return None, None
    return f">= {GATE}x eager", ratio >= GATE
