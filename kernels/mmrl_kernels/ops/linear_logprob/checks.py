"""Checks of the arguments of `linear_logprob`."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_head(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float,
    suppressed: Tensor | None,
) -> None:
    """Raise ValueError unless these fit together; the message says what came, what was expected and what to do."""
    if hidden.ndim != 2:
        raise ValueError(f"hidden: expected [N, H], got {list(hidden.shape)}; flatten its leading dimensions")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[1]:
        raise ValueError(f"weight: expected [V, H] with H={hidden.shape[1]}, got {list(weight.shape)}")
    check_rows(hidden, targets=targets)
    check_ids("targets", targets, weight.shape[0])
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias: expected [V] with V={weight.shape[0]}, got {list(bias.shape)}")
    if suppressed is not None:
        if suppressed.ndim != 1:
            raise ValueError(f"suppressed: expected [S], got {list(suppressed.shape)}")
        check_ids("suppressed", suppressed, weight.shape[0])
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature: expected a number > 0, got {temperature}; greedy decoding has no distribution")
    _check_precision(hidden, weight, bias)
    for name, tensor in {"weight": weight, "targets": targets, "bias": bias, "suppressed": suppressed}.items():
        if tensor is not None and tensor.device != hidden.device:
            raise ValueError(f"{name}: expected it on {hidden.device}, as hidden is, got {tensor.device}")


def check_rows(
    hidden: Tensor,  # [N, H]
    **tensors: Tensor | None,
) -> None:
    """Raise ValueError unless each tensor has one number a row of `hidden`."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != hidden.shape[:1]:
            raise ValueError(f"{name}: expected [N] with N={hidden.shape[0]}, got {list(tensor.shape)}")


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Raise ValueError unless these are int64, and on a CPU within [0, size). On a GPU looking would stop its queue."""
    if ids.dtype != torch.int64:
        raise ValueError(f"{name}: expected int64, got {_dtype(ids)}")
    if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(
            f"{name}: expected ids in [0, {size}), got {int(ids.min())} to {int(ids.max())}; drop padding rows, "
            "or give them an id that exists and no weight"
        )


def _check_precision(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    for name, tensor in {"hidden": hidden, "weight": weight, "bias": bias}.items():
        if tensor is not None and not tensor.dtype.is_floating_point:
            raise ValueError(f"{name}: expected floating-point numbers, got {_dtype(tensor)}")
        if tensor is None or tensor.dtype == hidden.dtype:
            continue
        if torch.float64 in (tensor.dtype, hidden.dtype) or not torch.is_autocast_enabled(hidden.device.type):
            raise ValueError(
                f"{name}: expected {_dtype(hidden)}, as hidden is, got {_dtype(tensor)}; cast one of them, "
                "or open torch.autocast"
            )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
