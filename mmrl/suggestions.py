"""Names that a misspelt one may have meant, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

BEHIND = 0.2
"""The most by which a name may be less like the wrong one than the nearest name is; likenesses are from 0 to 1."""


def did_you_mean(wrong: str, known: Iterable[str], count: int = 1, likeness: float = 0.6, before: str = "") -> str:
    """Return `before` and "did you mean A or B?" with at most `count` known names like a wrong one; empty if none is.

    `likeness` is the least share of letters that they have in common, in order, from 0 to 1.
    """
    shares = {name: SequenceMatcher(None, name, wrong).ratio() for name in known}
    least = max(likeness, max(shares.values(), default=0.0) - BEHIND)
    near = sorted((name for name, share in shares.items() if share >= least), key=lambda name: -shares[name])
    return f"{before}did you mean {' or '.join(near[:count])}?" if near else ""
