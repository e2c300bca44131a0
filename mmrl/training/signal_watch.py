"""Whether rewards tell trajectories apart: where they do not, training runs and teaches nothing."""

from __future__ import annotations

from collections.abc import Callable

PATIENCE = 10
"""Iterations without any signal after which it is said again, and again after twice as many."""


class SignalWatch:
    """Says when all groups of an iteration have equal rewards, so that every advantage is zero."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._silent = 0  # iterations in a row
        self._next = 1

    def see(self, step: int, zero_variance_share: float) -> None:
        """Take the share of groups whose rewards are all equal, in [0, 1]."""
        if not zero_variance_share >= 1:
            self._silent, self._next = 0, 1
            return
        self._silent += 1
        if self._silent < self._next:
            return
        if self._silent == 1:
            self._say(f"iteration {step}: in every group all rewards are equal, or missing, so it taught nothing")
        else:
            self._say(
                f"iteration {step}: for {self._silent} iterations in a row all rewards of every group were equal, so "
                "nothing is learnt. Look at the pictures and the reward; larger data.group_size or more exploration "
                "(sampling.transition.noise_level) may help"
            )
        self._next = max(PATIENCE, 2 * self._silent)
