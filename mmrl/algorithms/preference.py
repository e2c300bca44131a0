"""Losses on pairs: one answer that was chosen, one that was rejected, P of each.

They see an answer through one number, log(p_policy / p_reference) of the whole answer (`sequence_log_ratio`): beta
times it is the reward that DPO takes the policy to stand for. Terms [P] in, the mean over pairs is the loss.

Of pictures that number is `matching_log_ratio`, at one noise level: the losses are the same.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.checks import check_dtypes, check_shapes


def sequence_log_ratio(
    log_probs: Tensor,  # [B, T] under the policy
    reference_log_probs: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    *,
    mean: bool = False,
) -> Tensor:  # [B]; 0 for a row without decisions
    """log(p_policy / p_reference) of each answer, or that per token (`mean`). No gradient reaches the reference."""
    check_shapes("B T", log_probs=log_probs, reference_log_probs=reference_log_probs, mask=mask)
    check_dtypes("float32", log_probs=log_probs, reference_log_probs=reference_log_probs)
    check_dtypes("bool", mask=mask)
    total = (log_probs - reference_log_probs.detach()).where(mask, 0.0).sum(1)
    return total / mask.sum(1).clamp(min=1) if mean else total


def dpo_loss(
    chosen: Tensor,  # [P] log-ratios of the chosen answers
    rejected: Tensor,  # [P] of the rejected ones
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:  # [P], > 0
    """-log sigmoid(beta (chosen - rejected)): logistic regression on who won (DPO, arXiv:2305.18290, equation 7).

    `label_smoothing` is the share of pairs thought to be labelled the wrong way round (its "conservative" form).

    >>> import torch
    >>> dpo_loss(torch.zeros(1), torch.zeros(1), beta=0.1)
    tensor([0.6931])
    """
    _check_pairs(chosen, rejected, beta)
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing: expected a number in [0, 0.5), got {label_smoothing}")
    margin = beta * (chosen - rejected)
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def ipo_loss(
    chosen: Tensor,  # [P] log-ratios of the chosen answers, per token
    rejected: Tensor,  # [P] of the rejected ones, per token
    beta: float,
) -> Tensor:  # [P], >= 0
    """(chosen - rejected - 1 / (2 beta))^2: a margin that is enough, and no more (IPO, arXiv:2310.12036, equation 17).

    `beta` is the paper's tau. Take means over tokens (`sequence_log_ratio(mean=True)`), as trl does on its authors'
    word: of sums, the loss would grow with the square of the length.

    >>> import torch
    >>> ipo_loss(torch.tensor([3.0]), torch.tensor([-2.0]), beta=0.1)
    tensor([0.])
    """
    _check_pairs(chosen, rejected, beta)
    return (chosen - rejected - 1 / (2 * beta)) ** 2


def bco_loss(
    chosen: Tensor,  # [P] log-ratios of the chosen answers
    rejected: Tensor,  # [P] of the rejected ones
    beta: float,
    shift: float = 0.0,
) -> Tensor:  # [P], > 0
    """-log sigmoid(beta chosen - shift) - log sigmoid(shift - beta rejected): each answer good or bad by itself.

    BCO, arXiv:2404.04656, on pairs. `shift` is the mean reward (beta times the log-ratio) of answers seen so far, so
    that what is judged is better or worse than usual; trl 1.16's bco_pair has none.
    """
    _check_pairs(chosen, rejected, beta)
    return -logsigmoid(beta * chosen - shift) - logsigmoid(shift - beta * rejected)


def kto_loss(
    chosen: Tensor,  # [P] log-ratios of the chosen answers
    rejected: Tensor,  # [P] of the rejected ones
    beta: float,
    shift: float = 0.0,
) -> Tensor:  # [P], in [0, 2]
    """(1 - sigmoid(beta chosen - shift)) + (1 - sigmoid(shift - beta rejected)): the utility of each answer by itself.

    KTO, arXiv:2402.01306, on pairs; Diffusion-KTO, arXiv:2404.04465, with its sigmoid utility. It differs from
    `bco_loss` by the logarithm: an answer that is far off its place has a gradient of almost 0, and is given up.
    `shift` is the point that answers are good or bad against, beta times the mean log-ratio of answers, and at least 0
    (an estimate of a KL divergence). Diffusion-KTO's code takes the mean of the batch
    (jacklishufan/diffusion-kto train_kto_sd_v1.5.py@01c2fc3).

    >>> import torch
    >>> kto_loss(torch.zeros(1), torch.zeros(1), beta=0.1)
    tensor([1.])
    """
    _check_pairs(chosen, rejected, beta)
    if shift < 0:
        raise ValueError(f"shift: expected a number >= 0, got {shift}")
    return (shift - beta * chosen).sigmoid() + (beta * rejected - shift).sigmoid()


class MPOLoss(NamedTuple):
    """The weighted sum, and its parts without their weights."""

    loss: Tensor  # [P]
    preference: Tensor  # [P]
    quality: Tensor  # [P]
    generation: Tensor  # [P]


def mpo_loss(
    chosen: Tensor,  # [P] log-ratios of the chosen answers
    rejected: Tensor,  # [P] of the rejected ones
    chosen_log_probs: Tensor,  # [P] log-probs of the chosen answers, per token
    beta: float,
    shift: float,
    preference: float,
    quality: float,
    generation: float,
) -> MPOLoss:
    """MPO (arXiv:2411.10442, equation 5): a preference term (DPO), a quality term (BCO) and a generation term (SFT).

    InternVL weighs them 0.8, 0.2 and 1; `shift` is as in `bco_loss`.
    """
    check_shapes("P", chosen=chosen, chosen_log_probs=chosen_log_probs)
    if min(preference, quality, generation) < 0 or not max(preference, quality, generation):
        raise ValueError(f"weights: expected numbers >= 0, not all 0, got {preference}, {quality}, {generation}")
    parts = dpo_loss(chosen, rejected, beta), bco_loss(chosen, rejected, beta, shift), -chosen_log_probs
    return MPOLoss(preference * parts[0] + quality * parts[1] + generation * parts[2], *parts)


def _check_pairs(chosen: Tensor, rejected: Tensor, beta: float) -> None:
    check_shapes("P", chosen=chosen, rejected=rejected)
    check_dtypes("float32", chosen=chosen, rejected=rejected)
    if beta <= 0:
        raise ValueError(f"beta: expected a number > 0, got {beta}")
