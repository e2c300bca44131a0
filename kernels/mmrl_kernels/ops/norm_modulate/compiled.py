"""The reference through torch.compile, which fuses both directions and keeps only x and a row's statistics.

Two passes over a sample that does not fit into a CPU's cache cost more than torch's own one, so those go there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from mmrl_kernels.ops.norm_modulate import native, reference

_compiled = cast(Callable[..., Tensor], torch.compile(reference.norm_modulate, fullgraph=True))
_CACHED = 2**20  # numbers of a sample: 4 MiB in float32


def norm_modulate(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, kind: reference.Kind = "layer", weight: Tensor | None = None
) -> Tensor:
    """As the reference."""
    if torch.compiler.is_compiling():  # part of a larger graph, which fuses it further
        return reference.norm_modulate(x, scale, shift, eps, kind, weight)
    large = x.device.type == "cpu" and x.shape[1] * x.shape[2] > _CACHED
    return (native.norm_modulate if large and kind == "layer" else _compiled)(x, scale, shift, eps, kind, weight)
