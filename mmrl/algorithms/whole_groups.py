"""Losses on all answers to a prompt together, as functions of the log-ratio of each whole answer: terms [B].

They compare the answers of a group with one another inside the loss, where a policy gradient has compared their rewards
before it. A row whose group has no other scored row has nothing to be compared with: its term is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from mmrl.algorithms.groups import group_counts, group_sum
from mmrl.checks import check_dtypes, check_shapes


def pairwise_policy_loss(
    log_ratio: Tensor,  # [B] log(p_new / p_old) of whole answers, with gradients
    rewards: Tensor,  # [B]; NaN = could not be scored
    group_index: Tensor,  # [B] int
    clip: float,
) -> Tensor:  # [B]; the mean over rows is the mean over all pairs of a group
    """Mean over the others j of -min(ratio d, clip(ratio, 1 - clip, 1 + clip) d), d = reward - reward of j.

    P3O (arXiv:2310.00212) with separate clipping: each answer of a pair has its own bound on its ratio. A constant that
    is added to all rewards of a prompt changes no difference, hence nothing. Before the first update the gradient is
    that of RLOO, half of the pair's difference times the gradient of log p(first) - log p(second).

    >>> import torch
    >>> pairwise_policy_loss(torch.zeros(2), torch.tensor([3.0, 1.0]), torch.tensor([0, 0]), 0.2)
    tensor([-2.,  2.])
    """
    _check(log_ratio, rewards, group_index)
    if clip <= 0:
        raise ValueError(f"clip: expected a number > 0, got {clip}")
    pairs = _others(rewards, group_index)
    difference = (rewards[:, None] - rewards[None]).where(pairs, 0.0)
    ratio = log_ratio.where(rewards.isfinite(), 0.0).exp()[:, None]
    gain = torch.minimum(ratio * difference, ratio.clamp(1 - clip, 1 + clip) * difference)
    return -gain.sum(1) / pairs.sum(1).clamp(min=1)


def outcome_prediction_loss(
    log_ratio: Tensor,  # [B] log(p_new / p_old) of whole answers, with gradients
    right: Tensor,  # [B] 1 for right answers, 0 for wrong ones; NaN = could not be scored
    group_index: Tensor,  # [B] int
    beta: float,
    balanced: bool = True,
) -> Tensor:  # [B], >= 0
    """The cross-entropy of predicting whether an answer is right by its log-ratio (PACS, arXiv:2509.02522).

    The logit of an answer is beta times its log-ratio less the mean of those of the other answers of its group, so that
    raising one answer lowers the others. `balanced` weighs right and wrong answers of a group alike: by n / (2 n_right)
    and n / (2 n_wrong), and by 1 where all are right or all are wrong (ritzz-ai/PACS pacs_core_algos.py).

    >>> import torch
    >>> outcome_prediction_loss(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), 1.0)
    tensor([0.6931, 0.6931])
    """
    _check(log_ratio, right, group_index)
    if beta <= 0:
        raise ValueError(f"beta: expected a number > 0, got {beta}")
    known = right.isfinite()
    labels = right.where(known, 0.0)
    if ((labels != 0) & (labels != 1)).any():
        raise ValueError(f"right: expected 0 and 1, got {right[known].tolist()}")
    counts = group_counts(right, group_index)
    comparable = known & (counts > 1)
    scores = beta * log_ratio.where(known, 0.0)
    logits = scores - (group_sum(scores, group_index) - scores) / (counts - 1).clamp(min=1)
    weights = torch.ones_like(labels)
    if balanced:
        of_class = torch.where(labels > 0, group_sum(right, group_index), counts - group_sum(right, group_index))
        weights = torch.where(of_class < counts, counts / (2 * of_class.clamp(min=1)), 1.0)
    terms = weights * binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return terms.where(comparable, 0.0)


def _others(values: Tensor, group_index: Tensor) -> Tensor:
    """[B, B] bool: whether a column is another scored row of the row's group; False in rows that are not scored."""
    known = values.isfinite()
    together = (group_index[:, None] == group_index[None]) & known[:, None] & known[None]
    return together & ~torch.eye(len(values), dtype=torch.bool, device=values.device)


def _check(log_ratio: Tensor, values: Tensor, group_index: Tensor) -> None:
    check_shapes("B", log_ratio=log_ratio, values=values, group_index=group_index)
    check_dtypes("float32", log_ratio=log_ratio, values=values)
    check_dtypes("int", group_index=group_index)
