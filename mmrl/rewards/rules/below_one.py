"""Keeping a score short of perfect from being rounded up to perfect."""

from __future__ import annotations

BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1: scores leave as float32, where 1 - 1e-9 would be 1."""


def below_one(value: float) -> float:
    """The score of an answer that is not perfect: at most the largest float32 below 1."""
    return min(value, BELOW_ONE)
