"""The decisions of a rollout: the window of stochastic steps, and the trees of rows that share decisions.

The other steps follow the ODE, or are drawn and not trained. A short window that moves trains every step eventually, at
a fraction of the cost. Its position depends only on the configuration, the iteration and a seed, so a resumed run
continues with the same window.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from mmrl.config.sampling import BranchConfig, WindowConfig
from mmrl.errors import ConfigError
from mmrl.seeds import stream_seed


def draw_window(window: WindowConfig, steps: int, seed: int, iteration: int = 0) -> range:
    """Return the stochastic steps of one rollout: at a uniformly random position, or where the moving window is.

    The last of `steps` is stochastic only with `include_last`: most transitions add no noise there, and a single step
    gives an empty window.

    Raises:
        ConfigError: the window does not fit into the steps.

    >>> draw_window(WindowConfig(), steps=10, seed=0)
    range(0, 9)
    >>> draw_window(WindowConfig(size=4, move="slide", every=25), steps=10, seed=0, iteration=50)
    range(2, 6)
    """
    end = window.stochastic_steps(steps)
    high = end if window.high is None else min(window.high, end)
    if high == 0:
        return range(0)
    size = high - window.low if window.size is None else window.size
    if size < 1 or window.low + size > high:
        raise ConfigError(f"sampling.window: {size} steps from step {window.low} do not fit below step {high} "
                          f"(the pipeline takes {steps}, of which {end} may be stochastic)")  # fmt: skip
    latest = high - size
    if window.move == "grow":
        return range(max(window.low, latest - window.stride * (iteration // window.every)), high)
    if window.move == "slide":
        start = _slid(window, latest, iteration)
    else:
        start = random.Random(stream_seed(seed, "window")).randint(window.low, latest)
    return range(start, start + size)


def _slid(window: WindowConfig, latest: int, iteration: int) -> int:
    """Return the first step of a sliding window (MixGRPO, arXiv:2507.21802); after the last position it restarts."""
    starts = [*range(window.low, latest, window.stride), latest]
    counts = [math.ceil(window.every * math.exp(-window.decay * max(0, start - window.decay_from))) for start in starts]
    return starts[bisect_right(list(accumulate(counts)), iteration % sum(counts))]


@dataclass(frozen=True)
class BranchTrees:
    """The trees of a call's rows, as in BranchGRPO (arXiv:2509.06040) and B2-DiffuRL (arXiv:2503.11240).

    A tree of n rows is n rows of one call. They begin with the same noise. Until a branching point, all rows of a
    branch take the decision of the branch's first row. The pipeline needs no change, and no computation is saved.
    """

    config: BranchConfig
    rows: int

    def __post_init__(self) -> None:
        leaves = self.config.num_leaves
        if self.rows % leaves:
            raise ValueError(f"sampling.branch: {self.rows} rows are not a whole number of trees of {leaves}")

    @property
    def roots(self) -> list[int]:
        """For each row, the first row of its tree."""
        return self._first_rows(num_splits=0)

    def branch_roots(self, decision: int) -> list[int]:
        """Return for each row the first row of its branch at this decision; -1 means before the first decision."""
        return self._first_rows(num_splits=sum(decision >= at for at in self.config.at))

    def expand_to_branches(self, samples: Tensor, decision: int) -> Tensor:
        """Return `samples` [B, ...] with each row replaced by the first row of its branch."""
        return samples[self.branch_roots(decision)] if self.config.at else samples

    def table(self, decisions: int) -> Tensor | None:
        """Return [B, T + 1] int64, the `branches` of a rollout; None without branching."""
        if not self.config.at:
            return None
        return torch.tensor([self.roots, *(self.branch_roots(t) for t in range(decisions))]).T.contiguous()

    def _first_rows(self, num_splits: int) -> list[int]:
        size = self.config.num_leaves // self.config.branching_factor**num_splits  # rows of a branch
        return [row - row % size for row in range(self.rows)]
