"""Credit by right and wrong: how much each decision of an answer counts, by the outcome and by its importance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes


class TokenImportance(NamedTuple):
    """The importance of each decision for the outcome, in [0, 1]; 0 where masked."""

    right: Tensor  # [B, T] for a right outcome
    wrong: Tensor  # [B, T] for a wrong outcome


def token_importance(
    logits: Tensor,  # [B, T] of a model of outcomes, one for each decision
    mask: Tensor,  # [B, T] bool
    threshold: float = 0.5,
) -> TokenImportance:
    """Decisions at which the answer so far looks right, or wrong (OREAL, arXiv:2502.06781).

    With p the sigmoid of the mean of the logits up to a decision, they are (p - threshold) / (1 - threshold) and
    (1 - p - threshold) / (1 - threshold), and at least 0: at most one of them is positive from a threshold of 1/2 on
    (InternLM/OREAL train_oreal.py@2859cc0, `threshold_rescale`). No gradient reaches the logits.

    >>> import torch
    >>> token_importance(torch.tensor([[0.0, 4.0]]), torch.tensor([[True, True]])).right
    tensor([[0.0000, 0.7616]])
    """
    check_shapes("B T", logits=logits, mask=mask)
    check_dtypes("float32", logits=logits)
    check_dtypes("bool", mask=mask)
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold: expected a number in [0, 1), got {threshold}")
    known = logits.detach().where(mask, 0.0)
    probability = torch.sigmoid(known.cumsum(1) / mask.cumsum(1).clamp(min=1))
    parts = (((each - threshold) / (1 - threshold)).clamp(min=0) for each in (probability, 1 - probability))
    return TokenImportance(*(part.where(mask, 0.0) for part in parts))


def outcome_credit(
    advantages: Tensor,  # [B] of answers relative to their group; 0 where unscored
    right: Tensor,  # [B] bool
    mask: Tensor,  # [B, T] bool; decisions that are trained
    negatives: float,
    importance: TokenImportance | None = None,
    shaped: bool = True,
) -> Tensor:  # [B, T]; its mean over decisions times log-probabilities is OREAL's objective
    """Clone right answers, and push wrong ones down by `negatives` times their share (OREAL, arXiv:2502.06781).

    With P decisions in right answers, N in wrong ones, and A the advantage of an answer, the objective is the sum over
    right ones of A log p / P plus `negatives` times that over wrong ones of A log p / N. A wrong answer's A is minus
    the group's share of right ones, up to a factor: the reward of -1 times that share, which keeps its gradient
    consistent with cloning the best of several. Without `shaped` wrong answers have A = -1. Each decision is weighted
    by its importance, 1 if there is none.

    >>> import torch
    >>> right, mask = torch.tensor([True, False]), torch.ones(2, 2, dtype=torch.bool)
    >>> outcome_credit(torch.tensor([0.5, -0.5]), right, mask, negatives=0.5)
    tensor([[ 1.0000,  1.0000],
            [-0.5000, -0.5000]])
    """
    check_shapes("B", advantages=advantages, right=right)
    check_shapes("B T", mask=mask)
    check_dtypes("float32", advantages=advantages)
    check_dtypes("bool", right=right, mask=mask)
    if negatives < 0:
        raise ValueError(f"negatives: expected a number >= 0, got {negatives}")
    cloned, pushed = mask & right[:, None], mask & ~right[:, None]
    count = mask.sum()
    worth = advantages if shaped else advantages.where(right, -1.0)
    up = worth[:, None] * count / cloned.sum().clamp(min=1)
    down = negatives * worth[:, None] * count / pushed.sum().clamp(min=1)
    if importance is not None:
        up, down = up * importance.right, down * importance.wrong
    return up.where(cloned, down.where(pushed, 0.0))
