"""Policy-gradient surrogates: one term a decision, to be weighted and summed (`aggregation`).

Two kinds. `clipped_policy_loss` and `sapo_policy_loss` are functions of the ratio, and learn through it.
`cispo_policy_loss`, `topr_policy_loss` and `vespo_policy_loss` are REINFORCE: advantage times log-prob, weighted by a
ratio that is limited and carries no gradient; every decision keeps learning, some less. `imitation_loss` makes given
decisions likelier.

With importance "sequence" or "trajectory" a ratio is shared by a row (`importance_log_ratio`), so whole rows must be
at hand; with "token" any block of decisions may be. No gradient reaches `old_log_probs`, `advantages` or a masked
decision, for any content of the padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mmrl.algorithms.importance import Importance, importance_log_ratio
from mmrl.checks import check_dtypes, check_shapes


class PolicyLoss(NamedTuple):
    """The outputs of a surrogate for each decision. Masked decisions have loss 0, ratio 1 and clipped False."""

    loss: Tensor  # [B, T] terms to be weighted and summed; carries the graph
    ratio: Tensor  # [B, T] p_new / p_old, detached
    clipped: Tensor  # [B, T] bool; a limit on the ratio cut this decision's gradient off, or down


def clipped_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
    clip_low: float,
    clip_high: float,
    *,
    dual: float | None = None,
    importance: Importance = "token",
) -> PolicyLoss:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) for each decision (PPO, arXiv:1707.06347).

    `clip_high` above `clip_low` is DAPO's clip-higher (arXiv:2503.14476). Sizes are about 0.2 for tokens, 3e-4 for
    sequences (GSPO), and 1e-4 to 1e-5 for denoising steps, whose log-prob is a *mean* over latent dimensions.
    `dual` > 1 bounds the term of a bad decision that has become likelier: its ratio counts for no more than `dual`
    (dual clip, arXiv:1912.09729; trl's `delta`).

    `clipped` marks decisions that no longer learn (ratio too high with A > 0, or with A < 0 too low, or past `dual`).
    The clip fraction that flow_grpo logs, |ratio - 1| > clip, also counts those that the min leaves alone.

    >>> import torch
    >>> zero, up = torch.zeros(1, 1), torch.full((1, 1), 0.5)  # ratio = e^0.5 = 1.65
    >>> clipped_policy_loss(up, zero, zero + 2.0, zero == 0, 0.2, 0.2).loss
    tensor([[-2.4000]])
    """
    _check_clip(clip_low, clip_high)
    if dual is not None and dual <= 1:
        raise ValueError(f"dual: expected a number > 1, got {dual}")
    ratio, gain = _ratio_and_gain(log_probs, old_log_probs, advantages, mask, importance)
    least = torch.minimum(ratio * gain, ratio.clamp(1 - clip_low, 1 + clip_high) * gain)
    clipped = ((gain > 0) & (ratio > 1 + clip_high)) | ((gain < 0) & (ratio < 1 - clip_low))
    if dual is not None:
        least = torch.where(gain < 0, torch.maximum(least, dual * gain), least)
        clipped = clipped | ((gain < 0) & (ratio > dual))
    return PolicyLoss(-least, ratio.detach(), clipped)


def sapo_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    positive: float = 1.0,
    negative: float = 1.05,
    *,
    importance: Importance = "token",
) -> PolicyLoss:
    """-(4 / tau) sigmoid(tau (ratio - 1)) A: a gate that closes softly as the ratio leaves 1 (SAPO, arXiv:2511.20347).

    tau is `positive` where A > 0 and `negative` elsewhere; the larger, the sooner it closes. At ratio 1 the gradient
    is that of the plain ratio. Nothing is ever cut off, so nothing is marked `clipped`.

    >>> import torch
    >>> zero = torch.zeros(1, 1)
    >>> sapo_policy_loss(zero, zero, zero + 3.0, zero == 0).loss
    tensor([[-6.]])
    """
    if positive <= 0 or negative <= 0:
        raise ValueError(f"positive, negative: expected two numbers > 0, got {positive}, {negative}")
    ratio, gain = _ratio_and_gain(log_probs, old_log_probs, advantages, mask, importance)
    tau = torch.where(gain > 0, positive, negative).to(ratio.dtype)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    return PolicyLoss(-gate * gain, ratio.detach(), torch.zeros_like(mask))


def cispo_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    clip_low: float | None,
    clip_high: float,
    *,
    importance: Importance = "token",
) -> PolicyLoss:
    """-weight A log p, the weight being the ratio within [1 - clip_low, 1 + clip_high] (CISPO, arXiv:2506.13585).

    PPO cuts the gradient of a clipped token off; here it only counts for no more than the limit. The paper has no
    lower limit (`clip_low` None). trl's `epsilon_high` is the ceiling itself: 1 + clip_high (5 in ScaleRL,
    arXiv:2510.13786).
    """
    _check_clip(clip_low or 0.0, clip_high)
    ratio, gain = _ratio_and_gain(log_probs, old_log_probs, advantages, mask, importance)
    weight = ratio.detach().clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    return _weighted(log_probs, ratio, gain, mask, weight, clipped=(weight != ratio) & (gain != 0))


def reinforce_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    *,
    importance: Importance = "token",
) -> PolicyLoss:
    """-A log p, without a ratio (REINFORCE, Williams, 1992).

    It takes every answer for the present policy's: on stale answers it is biased, and answers with a negative advantage
    are pushed down without end. `importance` selects the ratio that is reported.
    """
    ratio, gain = _ratio_and_gain(log_probs, old_log_probs, advantages, mask, importance)
    return _weighted(log_probs, ratio, gain, mask, torch.ones_like(ratio), clipped=torch.zeros_like(mask))


def topr_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled, by whichever policy wrote the answer
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    *,
    importance: Importance = "trajectory",
) -> PolicyLoss:
    """-A log p where A >= 0, and -min(ratio, 1) A log p where A < 0 (TOPR, arXiv:2503.14286, equation 8).

    Good answers are imitated, however unlikely they are by now; bad ones stop counting once they have become
    unlikely, so that they are not pushed down without end. In the paper the ratio is that of the whole trajectory.
    """
    ratio, gain = _ratio_and_gain(log_probs, old_log_probs, advantages, mask, importance)
    weight = torch.where(gain < 0, ratio.detach().clamp(max=1.0), 1.0)
    return _weighted(log_probs, ratio, gain, mask, weight, clipped=(gain < 0) & (ratio > 1))


def vespo_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
    *,
    importance: Importance = "trajectory",
) -> PolicyLoss:
    """-e^lambda w^k e^(-lambda w) A log p, w being the ratio of the whole trajectory (VESPO, arXiv:2602.10693).

    The weight is 1 at w = 1, greatest at w = k / lambda, and 0 far from there on both sides. `positive` is (k, lambda)
    where A >= 0, `negative` where A < 0.
    """
    if min(*positive, *negative) <= 0:
        raise ValueError(f"positive, negative: expected numbers > 0, got {positive}, {negative}")
    ratio, gain = _ratio_and_gain(log_probs, old_log_probs, advantages, mask, importance)
    now = ratio.detach()
    power = torch.where(gain < 0, negative[0], positive[0]).to(now.dtype)
    decay = torch.where(gain < 0, negative[1], positive[1]).to(now.dtype)
    weight = torch.exp(decay + power * now.log() - decay * now)
    return _weighted(log_probs, ratio, gain, mask, weight, clipped=torch.zeros_like(mask))


def _weighted(
    log_probs: Tensor, ratio: Tensor, gain: Tensor, mask: Tensor, weight: Tensor, clipped: Tensor
) -> PolicyLoss:
    return PolicyLoss(-weight * gain * log_probs.where(mask, 0.0), ratio.detach(), clipped & mask)


def _ratio_and_gain(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, importance: Importance
) -> tuple[Tensor, Tensor]:
    """p_new / p_old and the advantages, 1 and 0 where masked: checked, and shared by every surrogate."""
    check_shapes("B T", log_probs=log_probs, advantages=advantages)
    check_dtypes("float32", advantages=advantages)
    ratio = importance_log_ratio(log_probs, old_log_probs, mask, importance).exp()
    return ratio, advantages.detach().where(mask, 0.0)  # here, not at the end: 0 * NaN in a backward pass is NaN


def _check_clip(clip_low: float, clip_high: float) -> None:
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip_low, clip_high: expected two numbers >= 0, got {clip_low}, {clip_high}")


def imitation_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    credit: Tensor,  # [B, T], >= 0: how much each decision is worth imitating
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T]; 0 where masked
    """-credit log p for each decision: the cross-entropy of supervised fine-tuning, weighted.

    Raises:
        ValueError: a credit is negative. Its loss has no lower bound: that is for a policy gradient.

    >>> import torch
    >>> imitation_loss(torch.tensor([[-0.5, -2.0]]), torch.ones(1, 2), torch.tensor([[True, False]]))
    tensor([[0.5000, 0.0000]])
    """
    check_shapes("B T", log_probs=log_probs, credit=credit, mask=mask)
    check_dtypes("float32", log_probs=log_probs, credit=credit)
    check_dtypes("bool", mask=mask)
    worth = credit.detach().where(mask, 0.0)
    if (worth < 0).any():
        raise ValueError(f"credit: expected numbers >= 0, got {worth.min().item()}; imitation knows no bad examples")
    return worth * (-log_probs).where(mask, 0.0)
