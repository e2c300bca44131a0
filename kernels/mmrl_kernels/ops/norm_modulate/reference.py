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
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    wide, width = x.to(exact), (x.shape[-1],)
    normed = F.layer_norm(wide, width, eps=eps) if kind == "layer" else F.rms_norm(wide, width, eps=eps)
    gain = 1 + scale.to(exact)
    if weight is not None:
        gain = gain * weight.to(exact)
    return (normed * gain[:, None] + shift.to(exact)[:, None]).to(x.dtype)
