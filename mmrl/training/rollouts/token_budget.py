"""`TokenBudget`: a constant number of tokens is learnt from in each update, however long answers are (C3PO).

With a constant number of answers, an update whose answers happen to be short averages over few tokens and one whose
answers are long over many: the noise of its gradient, and the time that it takes, vary with lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes
from mmrl.training.rollouts.collect import CollectedRollouts

BUDGET_STREAM = 7
"""The number of the random stream that orders answers."""


@dataclass(frozen=True)
class TokenBudget:
    """A selection of answers in random order, up to a number of tokens.

    Ring-lite's C3PO (arXiv:2506.14731) has a constant budget of training tokens for each step in the place of a number
    of answers. Its abstract alone was read; the order and the treatment of the last answer are ours.
    """

    tokens: int  # of an iteration
    seed: int

    def __call__(
        self,
        collected: CollectedRollouts,
        live: Tensor,  # [R] bool; rows with a gradient
        iteration: int,
    ) -> tuple[CollectedRollouts, dict[str, float]]:
        """Return the rollouts with answers for the budget as the trained ones, and metrics.

        Answers without a gradient take no part of the budget and are not trained on. Where no answer has one, all stay.
        Metrics: `token_budget/tokens` that are trained on, and `token_budget/left_out`, answers with a gradient that
        are not.
        """
        among = collected.trained & live
        lengths = torch.cat([rollout.mask.sum(1).cpu() for rollout in collected.scored.rollouts])
        order = np.random.default_rng([self.seed, iteration, BUDGET_STREAM]).permutation(len(among))
        chosen = rows_within(lengths, among, torch.from_numpy(order), self.tokens)
        metrics = {
            "token_budget/tokens": float(lengths[chosen].sum()),
            "token_budget/left_out": float((among & ~chosen).sum()),
        }
        return replace(collected, trained=chosen) if chosen.any() else collected, metrics


def rows_within(
    lengths: Tensor,  # [R] int64
    among: Tensor,  # [R] bool; the rows that are chosen from
    order: Tensor,  # [R] int64; a permutation of the rows
    budget: int,
) -> Tensor:  # [R] bool
    """Return the first rows of an order whose lengths add up to the budget as nearly as any number of first rows do.

    So the sum differs from the budget by at most half the length of a row, if all rows are long enough together, and
    whether a row is chosen depends on its own length at the end of the order alone. At least one row is chosen.

    >>> rows_within(torch.tensor([4, 9, 2, 5]), torch.ones(4).bool(), torch.tensor([2, 0, 3, 1]), 8).tolist()
    [True, False, True, False]
    """
    check_shapes("R", lengths=lengths, among=among, order=order)
    check_dtypes("bool", among=among)
    chosen = torch.zeros_like(among)
    candidates = order[among[order]]
    if not len(candidates):
        return chosen
    sums = lengths[candidates].cumsum(0)
    nearest = int((sums - budget).abs().argmin())
    chosen[candidates[: nearest + 1]] = True
    return chosen
