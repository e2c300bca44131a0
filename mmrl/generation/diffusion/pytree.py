"""Functions on nested structures of tensors: tuples, lists, dicts and model outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def map_leaves(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """Return the structure with `change` applied to every instance of `kind`; other leaves stay the same objects."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        changed = [map_leaves(kind, change, each) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if isinstance(value, list):
        return [map_leaves(kind, change, each) for each in value]
    if type(value) is dict:
        return {key: map_leaves(kind, change, each) for key, each in value.items()}
    if isinstance(value, OrderedDict):  # the outputs of diffusers and transformers, built from keywords
        return type(value)(**{key: map_leaves(kind, change, each) for key, each in value.items()})
    return value


def clone(value: Any) -> Any:
    """Return the structure with tensors copied and detached; other leaves are shared."""
    return map_leaves(Tensor, lambda tensor: tensor.detach().clone(), value)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape, dtype and device of a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def tree_spec(value: Any) -> Any:
    """Return the structure with each tensor replaced by its `TensorSpec`."""
    return map_leaves(Tensor, lambda tensor: TensorSpec(tensor.shape, tensor.dtype, tensor.device), value)


def zeros(specs: Any) -> Any:
    """Return the structure of a `tree_spec`, filled with zeros."""
    return map_leaves(TensorSpec, lambda spec: torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device), specs)


def find_tensor_holder(value: Any, depth: int = 3) -> str | None:
    """Return the type name of an object in the structure that holds tensors and is no container, such as a cache."""
    if value is None or isinstance(value, Tensor | str | int | float | torch.nn.Module):
        return None
    if isinstance(value, dict | list | tuple):
        inside = value.values() if isinstance(value, dict) else value
        return next((kind for each in inside if (kind := find_tensor_holder(each, depth))), None)
    return type(value).__name__ if _holds_tensor(getattr(value, "__dict__", None), depth) else None


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, Tensor) or value is None or depth < 0:
        return isinstance(value, Tensor)
    if isinstance(value, dict | list | tuple):
        return any(_holds_tensor(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value))
    return _holds_tensor(getattr(value, "__dict__", None), depth - 1)


def find_unsupported_leaf(value: Any) -> str | None:
    """Return the type name of a leaf that is no tensor, number or string; None: there is none."""
    if isinstance(value, dict | list | tuple):
        inside = value.values() if isinstance(value, dict) else value
        return next((kind for each in inside if (kind := find_unsupported_leaf(each))), None)
    known = value is None or isinstance(value, Tensor | str | int | float)
    return None if known else type(value).__name__
