"""Public names of a package that load when they are used, because importing mmrl must not import torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, homes: Mapping[str, str], renamed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package`.

    Args:
        package: the package's name.
        homes: each public name with its module, relative to the package, or absolute where it begins with `mmrl.`;
            `module:name` exports that name of the module.
        renamed: names of the last release, each with its `module:name` now; using one gives a FutureWarning.

    __getattr__ = exports(__name__, {"Trainer": "trainer"}, renamed={"Loop": "trainer:Trainer"})
    """
    old = renamed or {}

    def find(name: str) -> Any:
        if name not in homes and name not in old:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = (homes.get(name) or old[name]).partition(":")
        absolute = module if module.startswith("mmrl.") else f"{package}.{module}"
        if name not in homes:
            message = f"{package}.{name} is now {absolute}.{attribute}; the old name goes with the next release"
            warnings.warn(message, FutureWarning, stacklevel=2)
        return getattr(import_module(absolute), attribute or name)

    return find
