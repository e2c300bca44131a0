"""Advantages: a trajectory's reward relative to a baseline.

Rewards [B] and group ids [B] in, advantages [B] out. A reward that is not finite could not be scored: it is left
out of every mean and spread, and its own advantage is 0. A group whose rewards are all equal says nothing, and its
group-relative advantages are exactly 0 for any `eps` (GDPO's, which are whitened last, up to rounding). "Batch"
means the rows that are given: gather a batch that is spread over processes or micro-batches first.
`broadcast_to_decisions` gives the [B, T] that losses take; where rows share a path and part, `branch_advantages` gives
each decision an advantage by what came of all rows that took it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_counts, group_max, group_mean, group_spread, group_std
from mmrl.checks import check_dtypes, check_shapes


def grpo_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int; the prompt each rollout answers
    *,
    std: Literal["group", "batch"],
    ddof: Literal[0, 1],
    eps: float = 1e-4,
) -> Tensor:  # [B]; 0 if unscored or alone in its group
    """Each reward minus its group's mean, over a standard deviation plus `eps` (GRPO, arXiv:2402.03300).

    `std` is that of the group, or that of all raw rewards of the batch (Flow-GRPO's global std, arXiv:2505.05470).
    `ddof` differs between peers: 0 in flow_grpo, 1 in DanceGRPO, verl-omni and trl. flow_grpo and trl have eps = 1e-4.

    >>> grpo_advantages(torch.tensor([0.0, 2.0]), torch.tensor([5, 5]), std="group", ddof=0, eps=0.0)
    tensor([-1.,  1.])
    """
    spread_over = {"group": group_index, "batch": torch.zeros_like(group_index)}
    if std not in spread_over:
        raise ValueError(f"std: expected 'group' or 'batch', got {std!r}")
    return _over(_centred(rewards, group_index), group_std(rewards, spread_over[std], ddof), eps)


def dr_grpo_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B]; 0 if unscored or alone in its group
    """Each reward minus its group's mean, and nothing else (Dr. GRPO, arXiv:2503.20783).

    (1 - 1/n) times the RLOO advantage, n rows in the group, because the mean includes the row itself.

    >>> dr_grpo_advantages(torch.tensor([0.0, 2.0]), torch.tensor([5, 5]))
    tensor([-1.,  1.])
    """
    return _centred(rewards, group_index)


def constant_baseline_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int, unused: every answer counts by itself
    value: float = 0.0,
) -> Tensor:  # [B]; 0 if unscored
    """Each reward minus a constant, which sets the share of answers that count as bad (TOPR, arXiv:2503.14286).

    With rewards of 0 and 1, a value of 0 learns from right answers alone, 0.5 from right and wrong ones alike.

    >>> constant_baseline_advantages(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]), 0.25)
    tensor([-0.2500,  0.7500])
    """
    check_shapes("[B]", rewards=rewards, group_index=group_index)
    return torch.where(rewards.isfinite(), rewards - value, 0.0)


def rloo_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B]; 0 if unscored or alone in its group
    """Each reward minus the mean reward of the *others* in its group (RLOO, arXiv:2402.14740).

    >>> rloo_advantages(torch.tensor([0.0, 2.0]), torch.tensor([5, 5]))
    tensor([-2.,  2.])
    """
    count = group_counts(rewards, group_index)
    # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1): the centred form keeps equal rewards at exactly 0.
    return _centred(rewards, group_index) * (count / (count - 1).clamp(min=1))


def max_rl_advantages(
    rewards: Tensor,  # [B] float, >= 0; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B], >= -1; 0 if unscored or alone in its group
    """Each reward minus its group's mean, divided by that mean (MaxRL, arXiv:2602.02710).

    With rewards of 0 and 1 and n rows in a group, the policy gradient is that of imitating what succeeded, less a
    baseline: on average the gradient of log p to order n, p the chance of success. A prompt weighs about 1/p, where
    GRPO gives it 1/sqrt(p(1-p)): much to hard prompts, and little to those that are all but learned.

    Raises:
        ValueError: a reward below 0, whose mean is no scale.

    >>> max_rl_advantages(torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([5, 5, 5, 5]))
    tensor([-1., -1., -1.,  3.])
    """
    if (rewards < 0).any():
        raise ValueError(f"max_rl: rewards must be >= 0, as their mean divides; one is {rewards.nan_to_num(0).min():g}")
    return _over(_centred(rewards, group_index), group_mean(rewards, group_index), eps=0.0)


def linear_best_of_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> Tensor:  # [B]; 0 if unscored or alone in its group
    """Each reward's z-score in its group, times the z-score of the group's best.

    Imitating the best of n follows the score function s of one answer. This follows what a line through the group's
    (r, s), fitted by least squares, says of s at the best reward, less the mean of s: all n answers are evidence. With
    rewards of 0 and 1 it is `max_rl_advantages`; beyond, it depends on neither the scale nor the origin of rewards, so
    that graded and exact rewards can be mixed.

    >>> linear_best_of_advantages(torch.tensor([-2.0, -2.0, 6.0, 6.0]), torch.tensor([5, 5, 5, 5]))
    tensor([-1., -1.,  1.,  1.])
    """
    z = grpo_advantages(rewards, group_index, std="group", ddof=0, eps=0.0)
    scored = z.where(rewards.isfinite(), math.nan)
    return z * group_max(scored, group_index).nan_to_num(0.0)


def reinforce_pp_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
    *,
    baseline: Literal["batch", "group"],
    ddof: Literal[0, 1],
    eps: float = 1e-8,
) -> Tensor:  # [B]; 0 if unscored
    """Rewards minus a baseline, divided by the standard deviation *of those differences* over the batch.

    `baseline="batch"` is REINFORCE++ (whitening by the batch's mean and spread; group_index plays no part),
    `"group"` is REINFORCE++-baseline (arXiv:2501.03262). The second is not `grpo_advantages(std="batch")`, which
    divides by the spread of the raw rewards. OpenRLHF whitens over tokens, so that long answers count for more;
    here each rollout counts once. It uses ddof = 0, verl's `masked_whiten` 1.

    >>> easy_and_hard = torch.tensor([8.0, 10.0, 0.0, 2.0]), torch.tensor([0, 0, 1, 1])
    >>> reinforce_pp_advantages(*easy_and_hard, baseline="group", ddof=0)
    tensor([-1.,  1., -1.,  1.])
    """
    everyone = torch.zeros_like(group_index)
    baselines = {"batch": everyone, "group": group_index}
    if baseline not in baselines:
        raise ValueError(f"baseline: expected 'batch' or 'group', got {baseline!r}")
    centred = _centred(rewards, baselines[baseline])
    return _over(centred, group_std(centred.where(rewards.isfinite(), math.nan), everyone, ddof), eps)


def gdpo_advantages(
    rewards: Tensor,  # [B, R] float, one column a reward; NaN = could not be scored
    group_index: Tensor,  # [B] int
    weights: Sequence[float] | None = None,  # R of them; None = all 1
    *,
    ddof: Literal[0, 1],
    eps: float = 1e-4,
    renormalise: bool = False,
) -> Tensor:  # [B]; 0 if unscored
    """Each reward's group z-score, summed with weights, then whitened over the batch (GDPO, arXiv:2601.05242).

    A sum of rewards lets two different combinations of them end in one advantage; z-scores first keep them apart.
    A row with one NaN among its rewards is unscored and takes no part in any of them, unless `renormalise`: then
    the rewards it has are scaled up by the weight of those it lacks. (NVlabs/GDPO reads NaN as a reward of zero.)
    A reward of weight 0 is only monitored: its NaN does not make a row unscored. Published code has ddof = 1.
    """
    sizes = check_shapes("B R", rewards=rewards)
    check_shapes("B", {"B": sizes["B"]}, group_index=group_index)
    weight = rewards.new_tensor([1.0] * sizes["R"] if weights is None else list(weights))
    check_shapes("R", {"R": sizes["R"]}, weights=weight)
    used = weight != 0
    if not used.any():
        raise ValueError(f"weights: at least one must differ from 0, got {weight.tolist()}")
    rewards, weight = rewards[:, used], weight[used]
    present = rewards.isfinite()
    if not renormalise:
        present = present.all(1, keepdim=True).expand_as(present)
    columns = rewards.where(present, math.nan).unbind(1)
    scores = torch.stack([grpo_advantages(r, group_index, std="group", ddof=ddof, eps=eps) for r in columns], 1)
    available = (present * weight.abs()).sum(1)
    total = (scores * weight).sum(1) * weight.abs().sum() / available  # 0 / 0 = NaN where nothing is scored
    everyone = torch.zeros_like(group_index)
    return _over(_centred(total, everyone), group_std(total, everyone, ddof), eps)


def best_of_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
    keep: int,
    at_least: float | None = None,
) -> Tensor:  # [B]: 1 for rows to imitate, 0 for the rest
    """1 for the `keep` best of each group, and of them for those that reach `at_least`; 0 for all others.

    Rejection sampling: the best of each group (RAFT, arXiv:2304.06767), or all that are right (RFT, arXiv:2308.01825:
    `keep` as large as the group, `at_least` what a right answer scores). Of equals, the earlier rows are kept.

    >>> best_of_advantages(torch.tensor([0.0, 2.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1]), keep=1)
    tensor([0., 1., 0., 1.])
    """
    check_shapes("B", rewards=rewards, group_index=group_index)
    check_dtypes("float32", rewards=rewards)
    check_dtypes("int", group_index=group_index)
    if keep < 1:
        raise ValueError(f"keep: expected a number >= 1, got {keep}")
    good = rewards.isfinite() if at_least is None else rewards.isfinite() & (rewards >= at_least)
    order = rewards.where(good, -math.inf).argsort(descending=True, stable=True)
    result = torch.zeros_like(rewards)
    taken: dict[int, int] = {}
    for row, group in zip(order.tolist(), group_index[order].tolist(), strict=True):
        if good[row] and taken.get(group, 0) < keep:
            taken[group] = taken.get(group, 0) + 1
            result[row] = 1.0
    return result


def branch_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int; the prompt each row answers
    first_row: Tensor,  # [B, T] int; of each decision, the first of the rows that took it together
    *,
    std: Literal["group", "batch"] = "group",
    ddof: Literal[0, 1] = 0,
    eps: float = 1e-4,
) -> Tensor:  # [B, T]; 0 where another row stands for the decision, and where nothing differs
    """A decision is worth the mean reward of the rows that took it, compared with the group's others of its depth.

    BranchGRPO's reward fusion and depth-wise advantages (arXiv:2509.06040), its plain mean over leaves. Without shared
    decisions it is GRPO's advantage at each of them.

    >>> first = torch.tensor([[0, 0], [0, 1], [2, 2], [2, 3]])  # two rows go together, and two others, and part
    >>> branch_advantages(torch.tensor([0.0, 2.0, 4.0, 6.0]), torch.zeros(4).long(), first, eps=0.0)
    tensor([[-1.0000, -1.3416],
            [ 0.0000, -0.4472],
            [ 1.0000,  0.4472],
            [ 0.0000,  1.3416]])
    """
    sizes = check_shapes("B T", first_row=first_row)
    check_shapes("B", {"B": sizes["B"]}, rewards=rewards, group_index=group_index)
    check_dtypes("int", first_row=first_row)
    result = rewards.new_zeros(first_row.shape)
    rows = torch.arange(sizes["B"], device=first_row.device)
    for column, first in enumerate(first_row.unbind(1)):
        own = first == rows
        worth = group_mean(rewards, first)[own]
        result[own, column] = grpo_advantages(worth, group_index[own], std=std, ddof=ddof, eps=eps)
    return result


def extreme_advantages(
    advantages: Tensor,  # [B]
    index: Tensor,  # [B] int; which rows are compared
    at_least: float,
) -> Tensor:  # [B]; 0 but for the best and the worst
    """The advantages of the best and the worst row of each index, and of those only beyond +at_least and -at_least.

    How B2-DiffuRL picks what to learn from among the rows of a branch (arXiv:2503.11240). Of equals, the first.

    >>> extreme_advantages(torch.tensor([0.9, 0.6, -0.2, -0.7]), torch.tensor([0, 0, 0, 0]), 0.5)
    tensor([ 0.9000,  0.0000,  0.0000, -0.7000])
    """
    check_shapes("B", advantages=advantages, index=index)
    result = torch.zeros_like(advantages)
    differs = group_spread(advantages, index) > 0
    for each in torch.unique(index).tolist():
        rows = ((index == each) & differs).nonzero()[:, 0]
        if len(rows):
            best, worst = rows[advantages[rows].argmax()], rows[advantages[rows].argmin()]
            result[best] = advantages[best] if advantages[best] >= at_least else 0.0
            result[worst] = advantages[worst] if advantages[worst] <= -at_least else 0.0
    return result


def zero_variance_share(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
) -> float:
    """The share of groups, in [0, 1], whose scored rewards are all equal: they teach a group-relative method nothing.

    A group with fewer than two scored rewards counts among them.

    >>> zero_variance_share(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([3, 3, 4, 4]))
    0.5
    """
    flat = group_index[group_spread(rewards, group_index) == 0]
    return len(torch.unique(flat)) / len(torch.unique(group_index))


def broadcast_to_decisions(
    advantages: Tensor,  # [B]
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
) -> Tensor:  # [B, T]; 0 where masked
    """Give every decision of a trajectory the advantage of the whole trajectory.

    >>> broadcast_to_decisions(torch.tensor([2.0, -1.0]), torch.tensor([[True, True], [True, False]]))
    tensor([[ 2.,  2.],
            [-1.,  0.]])
    """
    sizes = check_shapes("B T", mask=mask)
    check_shapes("B", {"B": sizes["B"]}, advantages=advantages)
    check_dtypes("bool", mask=mask)
    return advantages[:, None].where(mask, 0.0)


def _centred(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Rewards minus their group's mean: exactly 0 where unscored or where the group has no spread."""
    # The mean of n equal floats may be off by a unit of rounding, which a division by a tiny std would blow up to 1.
    tells = rewards.isfinite() & (group_spread(rewards, group_index) > 0)
    return (rewards - group_mean(rewards, group_index)).where(tells, 0.0)


def _over(centred: Tensor, std: Tensor, eps: float) -> Tensor:
    """centred / (std + eps), and 0 where the numerator is 0 or the spread is undefined."""
    return (centred / (std + eps)).where((centred != 0) & (std + eps > 0), 0.0)


def scaled_negatives(
    advantages: Tensor,  # [B]
    rewards: Tensor,  # [B] float in [0, 1]; NaN = could not be scored
    group_index: Tensor,  # [B] int
    *,
    base: float = 0.5,
    slope: float = 1.5,
) -> Tensor:  # [B]
    """Multiply each negative advantage by base + slope * the mean reward of its group, limited to [0, 1].

    Success-adaptive negative gradient scaling of GUI-Libra (arXiv:2602.22190; EasyR1/verl/trainer/core_algos.py of its
    code, `grpo_weighted_positive_negative`, with these numbers in examples/gui_grpo.sh). Where one of several right
    actions is labelled, a group with few hits has missed, or has found another right action: its failures say little.
    The more answers hit the label, the surer it is that the others are wrong.

    >>> rewards, group = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4).long()
    >>> scaled_negatives(torch.tensor([1.5, -0.5, -0.5, -0.5]), rewards, group)
    tensor([ 1.5000, -0.4375, -0.4375, -0.4375])
    """
    check_shapes("B", advantages=advantages, rewards=rewards, group_index=group_index)
    factor = (base + slope * group_mean(rewards, group_index)).clamp(0.0, 1.0)
    return torch.where(advantages < 0, advantages * factor, advantages)
