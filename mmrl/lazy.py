"""Names that a package offers and that load when they are used: importing mmrl must not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package`; `homes` maps each public name to its module.

    A module is relative to the package, or absolute where it begins with `mmrl.`.

    __getattr__ = exports(__name__, {"Trainer": "trainer"})
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        return getattr(import_module(home if home.startswith("mmrl.") else f"{package}.{home}"), name)

    return find
