"""Preference chains: several rewards, learnt from by the order of the answers on which all of them agree."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes


def chain_advantages(
    rewards: Tensor,  # [B, R] float, one column a reward, higher is better in each; NaN = could not be scored
    group_index: Tensor,  # [B] int
    eps: float = 1e-6,
) -> Tensor:  # [B]; 0 off the chain of a row's group, where all of a chain are equal, and where unscored
    """The ranks of a group's longest chain of answers, less their mean and over their spread (ThinkRL-Edit).

    Of two answers on a chain one is at least as good by every reward. Answers that are equal by every reward share a
    rank, and the rest of the group, about whose place the rewards disagree, takes no part. A reward's scale and weight
    are of no account: no sum of rewards is formed (unbiased chain preference grouping, arXiv:2601.03467).

    >>> two = torch.tensor([[0.0, 0.5], [1.0, 0.5], [1.0, 1.0], [2.0, 0.0]])
    >>> chain_advantages(two, torch.zeros(4, dtype=torch.long), eps=0.0)
    tensor([-1.2247,  0.0000,  1.2247,  0.0000])
    """
    sizes = check_shapes("B R", rewards=rewards)
    check_shapes("B", {"B": sizes["B"]}, group_index=group_index)
    check_dtypes("int", group_index=group_index)
    result = torch.zeros(sizes["B"], dtype=rewards.dtype)
    scored = rewards.isfinite().all(1)
    for group in torch.unique(group_index[scored]):
        rows = (scored & (group_index == group)).nonzero()[:, 0]
        rank = chain_ranks(rewards[rows])
        on_chain = rank >= 0
        ranks = rank[on_chain].to(rewards.dtype)
        result[rows[on_chain]] = (ranks - ranks.mean()) / (ranks.std(correction=0) + eps) if ranks.any() else 0 * ranks
    return result


def chain_ranks(rewards: Tensor) -> Tensor:  # [G, R] finite -> [G] int: 0 for the worst of the chain; -1 off it
    """The rank of each answer of a group on the chain that holds the most answers, found by dynamic programming.

    Of chains with equally many answers the one with more ranks is taken, and then that which ends at the last answer in
    the order of the rewards, by the first of them that differs.

    >>> chain_ranks(torch.tensor([[0.0, 0.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])).tolist()
    [0, 1, -1, 1]
    """
    check_shapes("G R", rewards=rewards)
    levels, level, counts = torch.unique(rewards, dim=0, return_inverse=True, return_counts=True)  # sorted
    below = (levels[:, None] <= levels[None]).all(-1)  # [L, L]; a level can only be below a later one
    best: list[tuple[int, int]] = []  # answers and ranks of the best chain that ends at a level
    before: list[int] = []
    for end, count in enumerate(counts.tolist()):
        starts = [start for start in range(end) if below[start, end]]
        longest = max(starts, key=lambda start: (*best[start], start), default=-1)
        answers, ranks = best[longest] if starts else (0, 0)
        best.append((answers + count, ranks + 1))
        before.append(longest)
    chain = [max(range(len(best)), key=lambda end: (*best[end], end))]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    place = torch.full((len(levels),), -1, dtype=torch.int64)
    place[chain[::-1]] = torch.arange(len(chain))
    return place[level]
