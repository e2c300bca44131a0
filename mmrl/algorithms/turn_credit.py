"""Credit of single turns: returns from turn rewards, a baseline for each turn, and their place among decisions.

Rows have up to K turns; `present` [B, K] says which, and they are the first ones of a row. A reward that could not be
known is NaN, and so is every return that holds it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes


def turn_returns(
    rewards: Tensor,  # [B, K] float; of each turn
    present: Tensor,  # [B, K] bool
    discount: float,  # in [0, 1]
    broken: Tensor | None = None,  # [B, K] bool; turns whose return is their own reward, and is no part of others
) -> Tensor:  # [B, K]; NaN where a row has no such turn
    """Return the discounted sum of the rewards from each turn to the last: G_k = r_k + discount * G_{k+1}.

    At a broken turn G_k = r_k, and the turn before it gets none of it: G_{k-1} = r_{k-1} (UI-S1, arXiv:2509.11543).

    >>> rewards = torch.tensor([[1.0, 0.0, 4.0], [2.0, 2.0, 0.0]])
    >>> turn_returns(rewards, torch.tensor([[True, True, True], [True, True, False]]), 0.5)
    tensor([[2., 2., 4.],
            [3., 2., nan]])
    >>> turn_returns(torch.ones(1, 4), torch.ones(1, 4).bool(), 0.5, torch.tensor([[False, False, True, False]]))
    tensor([[1.5000, 1.0000, 1.0000, 1.0000]])
    """
    sizes = check_shapes("B K", rewards=rewards)
    check_shapes("B K", sizes, present=present)
    check_dtypes("bool", present=present)
    if not 0 <= discount <= 1:
        raise ValueError(f"discount: expected a number in [0, 1], got {discount}")
    broken = torch.zeros_like(present) if broken is None else broken
    check_shapes("B K", sizes, broken=broken)
    check_dtypes("bool", broken=broken)
    found, after = [], rewards.new_zeros(len(rewards))
    for turn in reversed(range(rewards.shape[1])):
        whole = rewards[:, turn] + (discount * after).where(~broken[:, turn], 0.0)
        found.append(whole.where(present[:, turn], torch.nan))
        after = torch.where(present[:, turn], whole.where(~broken[:, turn], 0.0), after)
    return torch.stack(found[::-1], dim=1) if found else rewards


def at_last_turn(
    outcome: Tensor,  # [B] float
    present: Tensor,  # [B, K] bool
) -> Tensor:  # [B, K]; 0 at other turns
    """Return the outcome of each row as the reward of its last turn.

    >>> at_last_turn(torch.tensor([5.0, 7.0]), torch.tensor([[True, True], [True, False]]))
    tensor([[0., 5.],
            [7., 0.]])
    """
    sizes = check_shapes("B K", present=present)
    check_shapes("B", {"B": sizes["B"]}, outcome=outcome)
    last = present & ~torch.cat([present[:, 1:], torch.zeros_like(present[:, :1])], dim=1)
    return outcome[:, None].where(last, 0.0)


def turn_groups(
    group_index: Tensor,  # [B] int64
    turns: int,  # K
) -> Tensor:  # [B, K] int64
    """Return a group for each turn: rows of one group are compared at one and the same turn.

    >>> turn_groups(torch.tensor([4, 4, 9]), 2)
    tensor([[0, 1],
            [0, 1],
            [2, 3]])
    """
    check_shapes("B", group_index=group_index)
    dense: Tensor = torch.unique(group_index, return_inverse=True)[1]
    return dense[:, None] * turns + torch.arange(turns, device=group_index.device)


def kind_groups(
    group_index: Tensor,  # [B] int64
    kinds: Tensor,  # [B, K] float; what the turns of a group are told apart by
) -> Tensor:  # [B, K] int64
    """Return a group for each turn: rows of one group are compared at turns of one kind, at any place.

    >>> kind_groups(torch.tensor([4, 4, 9]), torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    tensor([[0, 1],
            [1, 1],
            [3, 2]])
    """
    sizes = check_shapes("B K", kinds=kinds)
    check_shapes("B", {"B": sizes["B"]}, group_index=group_index)
    dense: Tensor = torch.unique(group_index, return_inverse=True)[1]
    known, numbers = torch.unique(kinds, return_inverse=True)
    found: Tensor = dense[:, None] * len(known) + numbers
    return found


def potential_rewards(
    potentials: Tensor,  # [B, K] float; of the state before each turn
    present: Tensor,  # [B, K] bool
    discount: float,
) -> Tensor:  # [B, K]; 0 where a row has no such turn
    """Return discount * phi(next state) - phi(state), the potential of an end being 0 (Ng, Harada and Russell 1999).

    Added to the rewards of the turns, it takes phi(state) from every return of every policy: the best stays the best.

    >>> potential_rewards(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True]]), 1.0)
    tensor([[ 2., -3.]])
    """
    sizes = check_shapes("B K", potentials=potentials)
    check_shapes("B K", sizes, present=present)
    known = potentials.where(present, 0.0)
    following = torch.cat([known[:, 1:], torch.zeros_like(known[:, :1])], dim=1)
    return (discount * following - known).where(present, 0.0)


def credit_by_turn(
    advantages: Tensor,  # [B, K] float; of each turn
    channel: Tensor,  # [B, T] int64; the turn of each decision
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
) -> Tensor:  # [B, T]; 0 where masked
    """Give every decision the advantage of its turn.

    >>> credit_by_turn(torch.tensor([[1.0, -1.0]]), torch.tensor([[0, 0, 1, 1]]), torch.tensor([[True] * 3 + [False]]))
    tensor([[ 1.,  1., -1.,  0.]])
    """
    sizes = check_shapes("B T", channel=channel)
    check_shapes("B T", sizes, mask=mask)
    check_shapes("B K", {"B": sizes["B"]}, advantages=advantages)
    check_dtypes("bool", mask=mask)
    return advantages.gather(1, channel).where(mask, 0.0)
