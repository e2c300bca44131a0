"""The pipeline classes that the tests prove."""

from __future__ import annotations

PROVEN: frozenset[str] = frozenset()
