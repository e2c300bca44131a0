"""Rows that share a path and part: the trees of BranchGRPO (arXiv:2509.06040) and B2-DiffuRL (arXiv:2503.11240).

A tree of n rows is n rows of one call. They begin with the same noise, and as long as they have not parted, the first
of those that still go together decides and the others do as it did. Nothing in the pipeline needs to know. It saves no
computation: rows that go together are each computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.config.sampling import BranchConfig


@dataclass(frozen=True)
class BranchTrees:
    """The trees among the rows of a call."""

    config: BranchConfig
    rows: int

    def __post_init__(self) -> None:
        if self.rows % self.config.num_leaves:
            raise ValueError(
                f"sampling.branch: {self.rows} rows are no whole number of trees of {self.config.num_leaves}"
            )

    @property
    def roots(self) -> list[int]:
        """Of each row, the first row that began with the same noise."""
        return self._first(parted=0)

    def branch_roots(self, decision: int) -> list[int]:
        """Of each row, the first of those that take this decision together; numbers before 0 are steps before any."""
        return self._first(parted=sum(decision >= at for at in self.config.at))

    def expand_to_branches(self, drawn: Tensor, decision: int) -> Tensor:
        """[B, ...] with each row as the one that it follows."""
        return drawn[self.branch_roots(decision)] if self.config.at else drawn

    def table(self, decisions: int) -> Tensor | None:
        """[B, T + 1] int64, as a rollout's `branches`; None where every row is alone."""
        if not self.config.at:
            return None
        return torch.tensor([self.roots, *(self.branch_roots(t) for t in range(decisions))]).T.contiguous()

    def _first(self, parted: int) -> list[int]:
        together = self.config.num_leaves // self.config.branching_factor**parted
        return [row - row % together for row in range(self.rows)]
