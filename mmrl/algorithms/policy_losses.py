"""Policy-gradient losses: one term a decision, and how terms add up to a loss.

A surrogate gives terms [B, T]. `aggregation_weights` gives weights [B, T], and the loss is sum(weights * terms). So
the loss is a sum over decisions, and any block of it can be backpropagated alone:

    weights = aggregation_weights(mask, "sequence")
    for t in range(T):  # a denoising step at a time: only one graph lives
        column = slice(t, t + 1)
        terms = clipped_policy_loss(log_probs(t), old_log_probs[:, column], ...).loss
        (weights[:, column] * terms).sum().backward()

Rows may be split over micro-batches and processes too: give each one the `total` of the whole update.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes

Aggregation = Literal["token", "sequence", "constant"]


class PolicyLoss(NamedTuple):
    """What a surrogate says of each decision. Masked decisions read 0, 1 and False."""

    loss: Tensor  # [B, T] terms to be weighted and summed; carries the graph
    ratio: Tensor  # [B, T] p_new / p_old, detached
    clipped: Tensor  # [B, T] bool; the clip cut this decision's gradient off


def clipped_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    advantages: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) for each decision (PPO, arXiv:1707.06347).

    `clip_high` above `clip_low` is DAPO's clip-higher (arXiv:2503.14476). Sizes are about 0.2 for tokens, and 1e-4
    to 1e-5 for denoising steps, whose log-prob is a *mean* over latent dimensions. No gradient reaches
    `old_log_probs`, `advantages` or a masked decision, whatever the padding holds.

    `clipped` marks decisions that no longer learn (ratio too high with A > 0, or too low with A < 0). The clip
    fraction that flow_grpo logs, |ratio - 1| > clip, also counts those that the min leaves alone.

    >>> import torch
    >>> zero, up = torch.zeros(1, 1), torch.full((1, 1), 0.5)  # ratio = e^0.5 = 1.65
    >>> clipped_policy_loss(up, zero, zero + 2.0, zero == 0, 0.2, 0.2).loss
    tensor([[-2.4000]])
    """
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip_low, clip_high: expected two numbers >= 0, got {clip_low}, {clip_high}")
    ratio = _log_ratio(log_probs, old_log_probs, mask, advantages).exp()
    gain = advantages.detach().where(mask, 0.0)  # here, not at the end: 0 * NaN in a backward pass is NaN
    loss = -torch.minimum(ratio * gain, ratio.clamp(1 - clip_low, 1 + clip_high) * gain)
    ratio = ratio.detach()
    clipped = ((gain > 0) & (ratio > 1 + clip_high)) | ((gain < 0) & (ratio < 1 - clip_low))
    return PolicyLoss(loss, ratio, clipped)


def aggregation_total(
    mask: Tensor,  # [B, T] bool
    how: Aggregation,
) -> int:
    """What `aggregation_weights` divides by: the number of decisions ("token"), or of rows that have any.

    Adds up over the micro-batches and processes of an update.
    """
    check_shapes("B T", mask=mask)
    check_dtypes("bool", mask=mask)
    return int(mask.sum() if how == "token" else mask.any(1).sum())


def aggregation_weights(
    mask: Tensor,  # [B, T] bool; all T decisions, even if columns are backpropagated one by one
    how: Aggregation,
    constant: float | None = None,
    total: int | None = None,
) -> Tensor:  # [B, T] float32, >= 0; 0 where masked
    """Weights such that the loss is sum(weights * terms); a block of decisions takes its block of weights.

    - `token`: the mean over all decisions of the batch; long rows count for more (DAPO, arXiv:2503.14476).
    - `sequence`: the mean over rows of the mean over each row's decisions (GRPO, arXiv:2402.03300).
    - `constant`: each row's sum over `constant` decisions, say the longest allowed, then the mean over rows
      (Dr. GRPO, arXiv:2503.20783): a row's length no longer scales its gradient.

    `total` is `aggregation_total` of the whole update, where `mask` is one micro-batch of it; None counts `mask`
    alone. A row without decisions has no weight and is not counted; to count it, as trl does, say total=B.

    >>> aggregation_weights(torch.tensor([[True, True], [True, False]]), "sequence")
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    """
    if (how == "constant") != (constant is not None):
        raise ValueError(f"constant: expected a number for how='constant' and none otherwise, got {how!r}, {constant}")
    if constant is not None and constant <= 0:
        raise ValueError(f"constant: expected a number > 0, got {constant}")
    if total is None:
        total = aggregation_total(mask, how)
    kept = mask.float()
    if how == "token":
        per_row = torch.ones_like(kept[:, :1])
    elif how == "sequence":
        per_row = kept.sum(1, keepdim=True).clamp(min=1)
    elif how == "constant" and constant is not None:
        per_row = torch.full_like(kept[:, :1], constant)
    else:
        raise ValueError(f"how: expected 'token', 'sequence' or 'constant', got {how!r}")
    return kept / per_row / max(total, 1)


def aggregate(
    terms: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
    how: Aggregation,
    constant: float | None = None,
    total: int | None = None,
) -> Tensor:  # []
    """The weighted sum of terms: a loss where all decisions are at hand at once. Masked terms may hold anything."""
    check_shapes("B T", terms=terms, mask=mask)
    return (aggregation_weights(mask, how, constant, total) * terms.where(mask, 0.0)).sum()


def _log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """log(p_new / p_old), and 0 with a zero gradient where masked: checked, and shared by every surrogate.

    Cut at 20, a ratio of 5e8: where exp overflows, a decision with advantage 0 would make every gradient NaN.
    """
    check_shapes("B T", log_probs=log_probs, old_log_probs=old_log_probs, mask=mask, advantages=advantages)
    # bfloat16 has no number between 1 and 1.0078: a ratio in it cannot see a clip range of 1e-4.
    check_dtypes("float32", log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    check_dtypes("bool", mask=mask)
    return (log_probs - old_log_probs.detach()).where(mask, 0.0).clamp(max=20.0)
