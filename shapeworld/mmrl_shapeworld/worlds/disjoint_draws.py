"""Draws for splits that share nothing: each split has its own part of the checksums of what is drawn."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeVar

SHARES = {"train": range(0, 5), "development": range(5, 6), "validation": range(6, 8), "ood": range(0, 8)}
"""The checksums, modulo 8, of each split. What `ood` draws differs from all others by its kind."""
T = TypeVar("T")


def checksum_of(drawn: object) -> int:
    """Return the checksum of a dataclass's fields."""
    return zlib.crc32(repr(drawn).encode())


def draw_disjoint(
    part: str, count: int, draw: Callable[[int], T | None], checksum: Callable[[T], int] = checksum_of
) -> tuple[T, ...]:
    """Return `count` different draws whose checksums belong to a split.

    Args:
        part: train, development, validation or ood.
        count: how many to return.
        draw: from the number of those that are found so far to another one; None for one that is not wanted.
        checksum: of one, which decides on its split; equal ones are taken once.
    """
    found: dict[int, T] = {}
    while len(found) < count:
        drawn = draw(len(found))
        if drawn is None:
            continue
        number = checksum(drawn)
        if number % 8 in SHARES[part]:
            found.setdefault(number, drawn)
    return tuple(found.values())
