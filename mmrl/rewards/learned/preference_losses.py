"""Losses of reward models, as functions of scores alone: preferences between two answers, and scores of one.

A gap is the score of the chosen answer minus that of the rejected one.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional

from mmrl.checks import check_shapes


def preference_logits(
    gap: Tensor,  # [P] mean of the difference of two scores
    variance: Tensor | None = None,  # [P] variance of that difference; None: 0
) -> Tensor:  # [P]
    """Return the log-odds that the chosen answer is preferred (Bradley and Terry, 1952).

    With a variance, scores are Gaussian and the expectation of the logistic function is approximated by that of
    gap / sqrt(1 + pi * variance / 8) (MacKay, 1992): an uncertain pair tends to even odds.

    >>> preference_logits(torch.tensor([2.0]), torch.tensor([24 / math.pi]))
    tensor([1.])
    """
    sizes = check_shapes("P", gap=gap)
    if variance is None:
        return gap
    check_shapes("P", sizes, variance=variance)
    return gap / (1 + math.pi / 8 * variance).sqrt()


def preference_loss(
    logits: Tensor,  # [P] log-odds that the chosen answer is preferred
    smoothing: Tensor | float = 0.0,  # probability that a label is wrong, [P] or one for all; in [0, 1]
    margin: Tensor | float = 0.0,  # by which the chosen answer is to be ahead, [P] or one for all
) -> Tensor:  # [P]
    """Return -(1 - e) log sigmoid(d - m) - e log sigmoid(m - d) for log-odds d, smoothing e and margin m.

    Smoothing of 1 flips a label. Without smoothing and margin it is the loss of Bradley and Terry.

    >>> preference_loss(torch.tensor([0.0]))
    tensor([0.6931])
    """
    check_shapes("P", logits=logits)
    ahead = logits - margin
    return -(1 - smoothing) * functional.logsigmoid(ahead) - smoothing * functional.logsigmoid(-ahead)


def score_loss(
    mean: Tensor,  # [B, A]
    target: Tensor,  # [B, A]; NaN = not rated on this axis
    variance: Tensor | None = None,  # [B, A]
) -> Tensor:  # [B]; the mean over rated axes, 0 where there is none
    """Return the squared error, halved, or with a variance the negative log-likelihood of a Gaussian.

    >>> score_loss(torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, torch.nan]]))
    tensor([2.])
    """
    sizes = check_shapes("B A", mean=mean)
    check_shapes("B A", sizes, target=target)
    rated = target.isfinite()
    error = (mean - target.nan_to_num()).square() / 2
    if variance is not None:
        error = error / variance + (2 * math.pi * variance).log() / 2
    return error.where(rated, 0.0).sum(1) / rated.sum(1).clamp(min=1)


def choice_loss(
    scores: Tensor,  # [B]
    advantages: Tensor,  # [B]
    group_index: Tensor,  # [B] int64, from 0
) -> Tensor:  # [G]
    """Return minus the expected advantage of an answer that is chosen with softmax(score) among those of its group.

    Its gradient is the policy gradient of the choice, without the variance of drawing it (RAD-2, arXiv:2604.15308).

    >>> choice_loss(torch.tensor([0.0, math.log(3)]), torch.tensor([-1.0, 1.0]), torch.tensor([0, 0]))
    tensor([-0.5000])
    """
    sizes = check_shapes("B", scores=scores)
    check_shapes("B", check_shapes("B", sizes, advantages=advantages), group_index=group_index)
    groups = int(group_index.max()) + 1
    most = scores.new_full((groups,), -math.inf).scatter_reduce(0, group_index, scores.detach(), "amax")
    odds = (scores - most[group_index]).exp()
    total = scores.new_zeros(groups).index_add(0, group_index, odds)
    return -scores.new_zeros(groups).index_add(0, group_index, odds * advantages) / total


def latent_divergence(
    mean: Tensor,  # [R, L]
    log_variance: Tensor,  # [R, L]
) -> Tensor:  # [R]
    """Return the KL divergence of a diagonal Gaussian from the standard one, in nats.

    >>> latent_divergence(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
    tensor([0.5000])
    """
    check_shapes("R L", check_shapes("R L", mean=mean), log_variance=log_variance)
    return (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
