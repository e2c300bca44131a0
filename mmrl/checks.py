"""Shape and dtype checks for the public doors of tensor code: the shape comment, made executable.

CheckError(ValueError)
├── ShapeError    a tensor with other dimensions than the function states
└── DtypeError    a tensor with another kind of numbers
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["float", "float32", "int", "bool"]


class CheckError(ValueError):
    """A tensor that a function does not accept. The message names the tensor, what was expected and what came."""


class ShapeError(CheckError):
    """A tensor with other dimensions than the function states."""


class DtypeError(CheckError):
    """A tensor with another kind of numbers than the function states."""


def check_shapes(dims: str, bound: dict[str, int] | None = None, /, **tensors: Tensor) -> dict[str, int]:
    """Bind each letter of `dims` to a size, or raise naming the tensor, the expected shape and its own.

    A closing `...` stands for any further dimensions, the same ones for every tensor of the call. The result
    can be passed as `bound`, so that a second call checks its tensors against the sizes of the first.

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
        expected = [f"{d}={sizes[d]}" for d in named if d in sizes]
        if open_ended and trailing is not None:
            expected.append(f"...={list(trailing)}")
        trailing = rest if trailing is None else trailing
        fits = len(lead) == len(named) and rest == trailing
        if not fits or any(sizes.setdefault(d, n) != n for d, n in zip(named, lead, strict=True)):
            known = f" with {', '.join(expected)}" if expected else ""
            raise ShapeError(f"{name}: expected [{', '.join(letters)}]{known}, got {list(tensor.shape)}")
    return sizes


def check_dtypes(kind: Kind, /, **tensors: Tensor) -> None:
    """Raise unless every tensor has numbers of one kind.

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
            expected = "float32 or float64" if kind == "float32" else kind
            raise DtypeError(f"{name}: expected {expected}, got {str(dtype).removeprefix('torch.')}")
