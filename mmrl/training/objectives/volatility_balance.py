"""Weights that leave saturated objectives for volatile ones, by signals of the last updates (RECAP)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmrl.training.objectives.term_balance import TermBalance, TermSignals

FLOOR = 0.1
"""The share of a term's first cost that is added to every mean, so that costs near 0 are saturated and not volatile."""


class VolatilityBalance(TermBalance):
    """Weights by how much each term's cost still changes: K softmax((trend + spread) / temperature) for K terms.

    The window of the last updates has an earlier and a later half, of means m and n. `trend` is n / m, below 1 while
    the term is learnt and above 1 while it is forgotten, and `spread` the standard deviation of the later half over
    m + n (RECAP, arXiv:2510.21978, equation 1). All weigh the same until half a window was seen. A term with an
    advantage has no loss that falls: its cost is the best reward of an answer so far less the mean one. The floor of
    the means is the suite's.
    """

    def __init__(self, terms: int, window: int, temperature: float) -> None:
        """
        Args:
            terms: the number of terms, K.
            window: the updates that signals are taken from, two or more.
            temperature: the larger, the closer all weights are to 1.
        """
        self._window, self._temperature = window, temperature
        self._costs: list[list[float]] = [[] for _ in range(terms)]
        self._first = [math.nan] * terms

    def factors(self, seed: int) -> list[float]:
        """Return K factors with a sum of K."""
        if any(len(costs) < max(2, self._window // 2) for costs in self._costs):
            return [1.0] * len(self._costs)
        scores = np.array([
            change_of(costs, FLOOR * abs(first)) / self._temperature
            for costs, first in zip(self._costs, self._first, strict=True)
        ])  # fmt: skip
        odds = np.exp(scores - scores.max())
        return [float(each) for each in len(odds) * odds / odds.sum()]

    def observe(self, signals: TermSignals) -> None:
        """Append the costs of an update."""
        for number, cost in signals.costs.items():
            if math.isnan(self._first[number]):
                self._first[number] = cost
            self._costs[number] = [*self._costs[number], cost][-self._window :]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the costs in the window of each term, and the first ones."""
        kept = {f"costs.{k}": torch.tensor(each, dtype=torch.float64) for k, each in enumerate(self._costs) if each}
        return kept | ({"first": torch.tensor(self._first, dtype=torch.float64)} if kept else {})

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for number in range(len(self._costs)):
            self._costs[number] = state[f"costs.{number}"].tolist() if f"costs.{number}" in state else []
        if "first" in state:
            self._first = state["first"].tolist()


def change_of(costs: Sequence[float], floor: float) -> float:
    """Return the trend plus the spread of costs >= 0; 1 for costs that stay as they are, or stay below `floor`.

    >>> change_of([2.0, 2.0, 2.0, 2.0], 0.0)
    1.0
    >>> change_of([2.0, 2.0, 1.0, 1.0], 0.0) < change_of([1.0, 1.0, 2.0, 2.0], 0.0)
    True
    """
    half = len(costs) // 2
    values = np.asarray(costs, dtype=np.float64)
    earlier, later = np.split(values, [len(values) - half])
    before, now = earlier.mean() + floor, later.mean() + floor
    if before <= 0:
        return 1.0
    return float(now / before + later.std() / (before + now))
