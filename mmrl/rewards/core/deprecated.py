"""Methods of rewards and suites that go with the next release; `mmrl.rewards.as_trl` and `as_verl` replace them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


class TrainerMethods:
    """A base class with the old methods `as_trl` and `as_verl`."""

    def as_trl(self, answer: str = "answer") -> Callable[..., list[float | None]]:
        """Return `mmrl.rewards.as_trl(self, answer)`, with a FutureWarning."""
        return _adapter("as_trl")(self, answer)  # type: ignore[no-any-return]

    def as_verl(self) -> Callable[..., dict[str, float]]:
        """Return `mmrl.rewards.as_verl(self)`, with a FutureWarning."""
        return _adapter("as_verl")(self)  # type: ignore[no-any-return]


def _adapter(name: str) -> Callable[..., Any]:
    message = f"the method {name} is now the function mmrl.rewards.{name}; the method goes with the next release"
    warnings.warn(message, FutureWarning, stacklevel=3)
    adapter: Callable[..., Any] = getattr(import_module("mmrl.rewards"), name)
    return adapter
