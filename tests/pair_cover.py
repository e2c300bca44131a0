"""Choose few of many cases that have every pair of feature values: most faults depend on one or two values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from itertools import combinations
from typing import Any


def pair_cover(features: Mapping[str, Any]) -> list[str]:
    """Return the names of cases that together have every pair of feature values of all cases.

    The case with the most pairs that are still missing comes next, of equals the first.

    Args:
        features: A dataclass instance for each case, by name.
    """
    missing = set().union(*map(pairs_of, features.values()))
    chosen = []
    while missing:
        best = max(features, key=lambda name: len(pairs_of(features[name]) & missing))
        missing -= pairs_of(features[best])
        chosen.append(best)
    return chosen


def pairs_of(features: Any) -> frozenset[Any]:
    """Return the pairs of values of a dataclass instance, each value with the place of its field."""
    return frozenset(combinations(enumerate(astuple(features)), 2))
