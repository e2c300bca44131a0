"""Branching rollouts: rows that share a path and then branch, the trees of BranchGRPO (arXiv:2509.06040) and B2-DiffuRL
(arXiv:2503.11240).

A tree of n rows is n rows of one call. They begin with the same noise. Until a branching point, all rows of a branch
take the decision of the branch's first row. The pipeline needs no change, and no computation is saved: every row is
computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.config.sampling import BranchConfig


@dataclass(frozen=True)
class BranchTrees:
    """The trees of a call's rows."""

    config: BranchConfig
    rows: int

    def __post_init__(self) -> None:
        if self.rows % self.config.num_leaves:
            raise ValueError(
                f"sampling.branch: {self.rows} rows are not a whole number of trees of {self.config.num_leaves}"
            )

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
