"""State dicts that hold those of several parts, under a prefix for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def state_of_part(state: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Return the entries whose names begin with `prefix`, under their names without it.

    >>> state_of_part({"0.weight": 1, "0.bias": 2, "10.weight": 3}, "0.")
    {'weight': 1, 'bias': 2}
    """
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
