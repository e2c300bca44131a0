"""Choose one tiny family per combination of features, so that the everyday tests cover all of them.

The families of `test_families.py` have more checks: of each combination the newest runs every day and stands for it. A
new row with a new combination becomes a representative by itself; the others run under the marker `breadth`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

from mmrl.understanding.vlm_support import ProvenVLM, proven
from tests.understanding import tiny_vlms as tiny


@dataclass(frozen=True)
class VLMFeatures:
    """The properties of a family that select code paths of a policy."""

    sharing: str
    """The reason why prompts are not shared; empty: they are."""
    axes: int
    """The axes of a position, by the sections of its rotary embedding."""
    videos: bool
    mixes: bool
    whole: bool
    """True if every part has a linear layer for an adapter."""


def features(name: str) -> VLMFeatures:
    """Return the features of a family."""
    seen = proven()[name]
    return VLMFeatures(
        sharing=_sharing(seen),
        axes=_axes(tiny.ROWS[name].config) if name in tiny.ROWS else 3 * name.startswith("qwen"),
        videos=seen.videos,
        mixes=seen.mixes,
        whole=not seen.frozen,
    )


def _sharing(seen: ProvenVLM) -> str:
    return "looks ahead" if not seen.causal else seen.unshared


def _axes(config: Any) -> int:
    """Return the number of sections of a rotary embedding; 0: it has one axis."""
    if not isinstance(config, dict):
        return 0
    own = len(config.get("mrope_section", ()))
    return max([own, *(_axes(value) for value in config.values())])


def served_features(name: str) -> Hashable:
    """Return what a server and a trainer must agree about: positions, and what a prompt may hold.

    A server does not share prompts with a trainer, and the trained parameters are read by one function.
    """
    seen = features(name)
    return seen.axes, seen.videos, seen.mixes


@cache
def everyday_families() -> frozenset[str]:
    """Return the newest family of `test_families.py` with each combination."""
    return frozenset({features(name): name for name in tiny.FAMILIES}.values())


@cache
def representatives(of: Callable[[str], Hashable] = features) -> frozenset[str]:
    """Return the first family of each combination that no family of `test_families.py` has and that is not heavy."""
    covered = {of(name) for name in tiny.FAMILIES}
    first: dict[Hashable, str] = {}
    for name, row in tiny.ROWS.items():
        if name in proven() and not row.heavy and of(name) not in covered:
            first.setdefault(of(name), name)
    return frozenset(first.values())
