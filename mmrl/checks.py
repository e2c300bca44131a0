"""Shape and dtype checks for the public doors of tensor code: the shape comment, made executable.

CheckError(ValueError)
├── ShapeError    a tensor has other dimensions than the function states
└── DtypeError    a tensor holds another kind of number
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["float", "float32", "int", "bool"]


class CheckError(ValueError):
    """A tensor is not what a function takes. The message names the tensor, what was due and what came."""


class ShapeError(CheckError):
    """A tensor has other dimensions than the function states."""


class DtypeError(CheckError):
    """A tensor holds another kind of number than the function states."""


def check_shapes(dims: str, bound: dict[str, int] | None = None, /, **tensors: Tensor) -> dict[str, int]:
    """Bind each letter of `dims` to a size, or raise naming the tensor, what was due and what came.

    A closing `...` stands for any further dimensions, the same ones for every tensor of the call. The result
    goes back in as `bound`, so that a second call holds its tensors to the sizes of the first.

    >>> check_shapes("B T", mask=torch.ones(2, 3))
    {'B': 2, 'T': 3}
    >>> check_shapes("B", {"B": 2}, rewards=torch.ones(4))
    Traceback (most recent call last):
    mmrl.checks.ShapeError: rewards: expected [B] with B=2, got [4]
    """
    sizes, letters = dict(bound or {}), dims.split()
    open_ended = letters[-1:] == ["..."]
    named = letters[:-1] if open_ended else letters
    trailing: torch.Size | None = None if open_ended else torch.Size()
    for name, tensor in tensors.items():
        lead, rest = tensor.shape[: len(named)], tensor.shape[len(named) :]
        due = [f"{d}={sizes[d]}" for d in named if d in sizes]
        if open_ended and trailing is not None:
            due.append(f"...={list(trailing)}")
        trailing = rest if trailing is None else trailing
        fits = len(lead) == len(named) and rest == trailing
        if not fits or any(sizes.setdefault(d, n) != n for d, n in zip(named, lead, strict=True)):
            known = f" with {', '.join(due)}" if due else ""
            raise ShapeError(f"{name}: expected [{', '.join(letters)}]{known}, got {list(tensor.shape)}")
    return sizes


def check_dtypes(kind: Kind, /, **tensors: Tensor) -> None:
    """Raise unless every tensor holds numbers of one kind.

    `float`: any floating type; `float32`: float32 or wider, where half precision would silently swallow the
    result; `int`: any integer type, never bool; `bool`: bool.
    """
    for name, tensor in tensors.items():
        dtype = tensor.dtype
        fits = {
            "float": dtype.is_floating_point,
            "float32": dtype in (torch.float32, torch.float64),
            "int": not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool),
            "bool": dtype is torch.bool,
        }[kind]
        if not fits:
            due = "float32 or float64" if kind == "float32" else kind
            raise DtypeError(f"{name}: expected {due}, got {str(dtype).removeprefix('torch.')}")
