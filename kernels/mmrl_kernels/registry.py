"""Choose the implementation of an op for each call, and log the reason.

`MMRL_KERNELS` names one for all ops: `reference` (plain torch), `triton`, or `auto`, the default: the first of an op's
backends that supports the tensor. `auto` falls back and logs it once; a backend requested by name raises if it does not
support the call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, cast, get_args

from torch import Tensor

_log = logging.getLogger(__name__)

Name = Literal["reference", "triton"]
SupportCheck = Callable[[Tensor], str | None]
"""Returns None, or the reason for which a backend does not support this tensor: "x is on cpu"."""

VARIABLE = "MMRL_KERNELS"


class KernelError(ValueError):
    """A call that no backend supports, or that the requested backend does not support."""


@dataclass(frozen=True)
class Backend:
    """An implementation of an op."""

    name: Name
    home: str  # "module:function", imported at the first call
    unsupported_reason: SupportCheck = lambda x: None

    def load(self) -> Callable[..., Any]:
        """Import and return the function."""
        return _imported(self.home)


@dataclass(frozen=True)
class Op:
    """An op and its backends, the preferred one first and the reference last."""

    name: str
    backends: tuple[Backend, ...]


@dataclass(frozen=True)
class Choice:
    """A backend, and the reasons against the earlier ones."""

    backend: Backend
    reason: str


def requested() -> Name | Literal["auto"]:
    """Return the value of `MMRL_KERNELS`.

    Raises:
        KernelError: it names no backend.
    """
    name = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    known = (*get_args(Name), "auto")
    if name not in known:
        raise KernelError(f"{VARIABLE}={name}: expected one of {', '.join(known)}")
    return cast(Name | Literal["auto"], name)


def choose(op: Op, x: Tensor) -> Choice:
    """Choose the backend for a call whose tensors are on the device of `x` and have its dtype.

    Raises:
        KernelError: the requested backend does not exist for this op, or does not support the call.
    """
    name = requested()
    candidates = [backend for backend in op.backends if name in ("auto", backend.name)]
    if not candidates:
        have = ", ".join(backend.name for backend in op.backends)
        raise KernelError(f"{VARIABLE}={name}: {op.name} has no such backend; it has {have}")
    reasons: list[str] = []
    for backend in candidates:
        reason = backend.unsupported_reason(x)
        if reason is None:
            return Choice(backend, "; ".join(reasons) or ("first choice" if name == "auto" else "requested by name"))
        reasons.append(f"{backend.name}: {reason}")
    raise KernelError(f"{op.name}: {'; '.join(reasons)}")


def implementation(op: Op, x: Tensor) -> Callable[..., Any]:
    """Return the chosen backend's function; the choice is logged once for each op and reason."""
    choice = choose(op, x)
    _log_choice(op.name, choice.backend.name, choice.reason)
    return choice.backend.load()


def needs_triton(x: Tensor) -> str | None:
    """Return None on CUDA tensors and in Triton's interpreter, else the reason against Triton kernels."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if x.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"x is on {x.device.type}"


@cache
def _imported(home: str) -> Callable[..., Any]:
    module, _, function = home.partition(":")
    return cast(Callable[..., Any], getattr(import_module(module), function))


@cache
def _log_choice(op: str, backend: str, reason: str) -> None:
    _log.info("%s: %s (%s)", op, backend, reason)
