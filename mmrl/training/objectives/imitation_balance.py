"""The balance of imitation and reinforcement by the norm of imitation's gradient (SASR)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmrl.training.objectives.term_balance import TermBalance, TermSignals

BALANCE_STREAM = 6
"""The number of the random stream that decides between the terms."""


class ImitationBalance(TermBalance):
    """Decides in each update whether it imitates: with the probability |g| / (|g| + gamma |g0|).

    |g| is the norm of the last gradient of imitation, and |g0| that of the first, after the warm-up: while imitation
    still teaches as much as then, half of the updates imitate (gamma 1), and fewer as it is learnt
    (SASR, arXiv:2505.13026). The first update imitates.
    """

    def __init__(self, gamma: float, imitation: int = 1) -> None:
        """`imitation` is the number of the term that imitates, 0 or 1."""
        self._gamma, self._imitation = gamma, imitation
        self._first: float | None = None
        self._last = 0.0

    @property
    def probability(self) -> float:
        """The probability that the next update imitates."""
        if self._first is None:
            return 1.0
        total = self._last + self._gamma * self._first
        return self._last / total if total else 0.0

    def imitates(self, seed: int) -> bool:
        """Return whether an update imitates; the decision follows from its seed."""
        return bool(np.random.default_rng((seed, BALANCE_STREAM)).random() < self.probability)

    def factors(self, seed: int) -> list[float]:
        """Return 1 for the term that an update takes, and 0 for the other."""
        chosen = self._imitation if self.imitates(seed) else 1 - self._imitation
        return [float(number == chosen) for number in range(2)]

    def observe(self, signals: TermSignals) -> None:
        """Take note of the norm of a gradient of imitation, where the update imitated."""
        norm = signals.norms.get(self._imitation)
        if norm is not None:
            self._first = norm if self._first is None else self._first
            self._last = norm

    def state_dict(self) -> dict[str, Tensor]:
        """Return the two norms; nothing before the first."""
        if self._first is None:
            return {}
        return {"norms": torch.tensor([self._first, self._last], dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if "norms" in state:
            self._first, self._last = state["norms"].tolist()
