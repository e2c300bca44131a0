"""What a loss's derivative will be, told to a policy before its replay: its output layer's gradients are made at once.

Scored a few rows at a time, an output layer that is trained would compute its logits twice, once for the log-probs and
once more when their gradient comes in (`mmrl_kernels.linear_logprob`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from mmrl.policy import Slope
from mmrl_kernels.ops.linear_logprob import Foresee


class Foreseeing:
    """The part of a policy that can be told (power FORESEE)."""

    _slope: Slope | None = None

    @contextmanager
    def foreseeing(self, slope: Slope) -> Iterator[None]:
        """While open, replays with gradients expect this derivative."""
        before, self._slope = self._slope, slope
        try:
            yield
        finally:
            self._slope = before


def at_places(slope: Slope | None, rows: Tensor, columns: Tensor) -> Foresee | None:
    """The same of a list of decisions: `rows` and `columns` [M] say where each stands."""
    return None if slope is None else lambda log_probs, at: slope(log_probs, rows[at], columns[at])
