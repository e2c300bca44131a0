"""Which implementation of an op a call gets, and why.

`MMRL_KERNELS` names one for all ops: `reference` (plain torch), `native` (torch's own fused operators), `compile`
(torch.compile of the reference), `triton`, or `auto`, the default: the first of an op's backends that takes the tensor
it is asked about. `auto` falls back and says so once; a backend asked for by name raises where it cannot serve.
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

Name = Literal["reference", "native", "compile", "triton"]
Refusal = Callable[[Tensor], str | None]
"""None, or why a backend cannot serve a call with this tensor: "x is on cpu"."""

VARIABLE = "MMRL_KERNELS"


class KernelError(ValueError):
    """A call that no backend takes, or a backend asked for by name that cannot serve it."""


@dataclass(frozen=True)
class Backend:
    """One implementation of an op."""

    name: Name
    home: str  # "module:function", imported at the first call
    refusal: Refusal = lambda x: None

    def load(self) -> Callable[..., Any]:
        """The function."""
        return _imported(self.home)


@dataclass(frozen=True)
class Op:
    """An op and what computes it, the preferred backend first and the reference last."""

    name: str
    backends: tuple[Backend, ...]


@dataclass(frozen=True)
class Choice:
    """A backend, and why not an earlier one."""

    backend: Backend
    reason: str


def wanted() -> Name | Literal["auto"]:
    """What `MMRL_KERNELS` asks for.

    Raises:
        KernelError: it names no backend.
    """
    name = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    known = (*get_args(Name), "auto")
    if name not in known:
        raise KernelError(f"{VARIABLE}={name}: expected one of {', '.join(known)}")
    return cast(Name | Literal["auto"], name)


def choose(op: Op, x: Tensor) -> Choice:
    """The backend for a call whose tensors live where `x` does and have its dtype.

    Raises:
        KernelError: the backend that was asked for by name does not exist for this op, or refuses.
    """
    name = wanted()
    candidates = [backend for backend in op.backends if name in ("auto", backend.name)]
    if not candidates:
        have = ", ".join(backend.name for backend in op.backends)
        raise KernelError(f"{VARIABLE}={name}: {op.name} has no such backend; it has {have}")
    refusals: list[str] = []
    for backend in candidates:
        why_not = backend.refusal(x)
        if why_not is None:
            return Choice(backend, "; ".join(refusals) or ("first choice" if name == "auto" else "asked for by name"))
        refusals.append(f"{backend.name}: {why_not}")
    raise KernelError(f"{op.name}: {'; '.join(refusals)}")


def implementation(op: Op, x: Tensor) -> Callable[..., Any]:
    """The chosen backend's function; what was chosen is told once for each op and reason."""
    choice = choose(op, x)
    _tell(op.name, choice.backend.name, choice.reason)
    return choice.backend.load()


def needs_triton(x: Tensor) -> str | None:
    """The refusal of Triton kernels: they run on CUDA tensors, or anywhere in Triton's interpreter."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if x.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"x is on {x.device.type}"


def needs_compiler(x: Tensor) -> str | None:
    """The refusal of torch.compile: on a CPU its seconds of compilation pay only for those who ask for it by name."""
    if x.device.type == "cpu" and wanted() == "auto":
        return f"on a CPU it compiles for seconds first; {VARIABLE}=compile asks for it"
    return None


@cache
def _imported(home: str) -> Callable[..., Any]:
    module, _, function = home.partition(":")
    return cast(Callable[..., Any], getattr(import_module(module), function))


@cache
def _tell(op: str, backend: str, reason: str) -> None:
    _log.info("%s: %s (%s)", op, backend, reason)
