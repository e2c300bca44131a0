"""Losses of reward models, as functions of scores alone: preferences between two answers, and scores of one.

A gap is the score of the chosen answer minus that of the rejected one. Doubtful labels are found by the votes of
several models (Secrets of RLHF II, arXiv:2401.06080): the strength of a pair is the mean gap that the models give it.
Below 0 they disagree with its label, near 0 the two answers are about equal, far above 0 the label is clear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
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


@dataclass(frozen=True)
class JudgedLabels:
    """The labels of P pairs after a vote."""

    smoothing: Tensor
    """[P] probability that a label is wrong; 1 flips it."""
    margin: Tensor
    """[P] gap that the loss asks for, at least 0."""
    kept: Tensor
    """[P] bool; False for pairs that are left out."""


def judge_labels(
    strength: Tensor,  # [P] mean gap over models
    flip: float = 0.0,  # largest share of all pairs whose labels are flipped
    soften: float = 0.0,  # share of the others, those of least strength, whose labels are softened
    drop: float = 0.0,  # share of the others, those of least strength, that are left out
    margin: float = 0.0,  # factor of the strength of clear pairs in their margin
) -> JudgedLabels:
    """Flip the labels that models contradict most, soften or leave out doubtful ones, and set margins of clear ones.

    Only pairs of negative strength are flipped. A softened label is wrong with probability sigmoid(-|strength|), so one
    that models are sure of stays. A margin is the absolute strength times `margin`, but 0 for softened pairs.

    >>> judged = judge_labels(torch.tensor([-3.0, 0.0, 2.0, 5.0]), flip=0.5, soften=0.34, margin=0.5)
    >>> judged.smoothing, judged.margin
    (tensor([1.0000, 0.5000, 0.0000, 0.0000]), tensor([1.5000, 0.0000, 1.0000, 2.5000]))
    """
    check_shapes("P", strength=strength)
    count = len(strength)
    order = strength.argsort()
    flipped = torch.zeros(count, dtype=torch.bool)
    flipped[order[: int(flip * count)]] = True
    flipped &= strength < 0
    certainty = strength.abs().where(flipped, strength)
    others = [place for place in certainty.argsort().tolist() if not flipped[place]]
    kept = torch.ones(count, dtype=torch.bool)
    dropped = int(drop * len(others))
    kept[others[:dropped]] = False
    soft = torch.zeros(count, dtype=torch.bool)
    soft[others[dropped : dropped + int(soften * len(others))]] = True
    smoothing = flipped.to(strength.dtype).where(~soft, (-strength.abs()).sigmoid())
    return JudgedLabels(smoothing, (margin * certainty.clamp(min=0)).where(~soft, 0.0), kept)
