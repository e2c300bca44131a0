"""Lazy public names of a package: `import mmrl` must not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package`; `homes` maps each public name to its module.

    A module is relative to the package, or absolute where it begins with `mmrl.`; `module:name` exports that name.

    __getattr__ = exports(__name__, {"Trainer": "trainer"})
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = homes[name].partition(":")
        found = import_module(module if module.startswith("mmrl.") else f"{package}.{module}")
        return getattr(found, attribute or name)

    return find
