"""The norm and its modulation in plain torch, in float32 throughout and rounded once."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["layer", "rms"]


def norm_modulate(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, kind: Kind = "layer", weight: Tensor | None = None
) -> Tensor:
    """As the public function, without its checks."""
    wide, width = x.to(exact(x)), (x.shape[-1],)
    normed = F.layer_norm(wide, width, eps=eps) if kind == "layer" else F.rms_norm(wide, width, eps=eps)
    gain = 1 + scale.to(wide.dtype)
    if weight is not None:
        gain = gain * weight.to(wide.dtype)
    return (normed * gain[:, None] + shift.to(wide.dtype)[:, None]).to(x.dtype)


def exact(x: Tensor) -> torch.dtype:
    """In which statistics and modulation are computed."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
