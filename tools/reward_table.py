"""The table of rewards in the documentation."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mmrl.rewards import RewardSpec, available, reward_class, spec_of


def markdown_table(names: Iterable[str] | None = None) -> str:
    """Return a Markdown table of rewards, sorted by name; None means all that are available."""
    lines = [
        "| reward | what it measures | scope | range | needs | source | licence |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(available() if names is None else names):
        card = spec_of(reward_class(name))
        cells = [
            f"`{card.name}`{' ∂' if card.differentiable else ''}",
            card.summary,
            card.scope.value,
            _range(card),
            ", ".join(f"`{need}`" for need in card.needs),
            card.source,
            card.licence,
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _range(card: RewardSpec) -> str:
    low, high = (_number(edge) for edge in card.range)
    return f"{low} to {high}{' ↓' if card.direction == 'lower' else ''}"


def _number(edge: float) -> str:
    return f"{edge:g}" if math.isfinite(edge) else "∞" if edge > 0 else "-∞"
