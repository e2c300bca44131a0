"""Importance ratios: the probability of a decision or trajectory now, relative to when it was sampled."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes

Importance = Literal["token", "sequence", "trajectory"]

LARGEST = 20.0
"""Log-ratios are cut here, at a ratio of 5e8: where exp overflows, a decision with advantage 0 would make every
gradient NaN."""


def guarded_log_ratio(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients: means over latent dimensions
    old_log_probs: Tensor,  # [B, T] as sampled
    mean: Tensor,  # [B, T, ...] of the Gaussian of each decision, under the present parameters
    old_mean: Tensor,  # [B, T, ...] as sampled
    std: Tensor,  # [B, T] of both
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
) -> Tensor:  # [B, T]; 0 with a zero gradient where masked
    """GRPO-Guard's normalised log-ratio of denoising steps: std (log(p_new / p_old) + mean(d²) / (2 std²)).

    Where the mean has moved by d and the sample was drawn with noise e, the plain log-ratio is
    mean(d e) / std - mean(d²) / (2 std²): below 0 on average, so that bad decisions are clipped late and good ones
    early, or never, and the more spread the smaller std is. What is left here is mean(d e): of mean 0, and of the same
    spread at each step for the same d (arXiv:2510.22319, equation 8).
    """
    check_shapes("B T", log_probs=log_probs, old_log_probs=old_log_probs, std=std, mask=mask)
    check_shapes("B T ...", mean=mean, old_mean=old_mean)
    check_dtypes("float32", log_probs=log_probs, old_log_probs=old_log_probs, mean=mean, old_mean=old_mean)
    check_dtypes("bool", mask=mask)
    moved = ((mean - old_mean.detach()) ** 2).flatten(2).mean(2)
    spread = std.where(mask, 1.0)
    own = (log_probs - old_log_probs.detach()).where(mask, 0.0)
    return spread * own + moved.where(mask, 0.0) / (2 * spread)


def importance_log_ratio(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
    importance: Importance = "token",
) -> Tensor:  # [B, T], at most 20; 0 with a zero gradient where masked
    """log(p_new / p_old) for each decision: its own, or one that it shares with its row.

    - `token`: its own (PPO, GRPO).
    - `sequence`: the mean over the row's decisions, so that ratios are geometric means (GSPO, arXiv:2507.18071).
    - `trajectory`: the sum over the row's decisions, the log-ratio of the whole trajectory.

    A shared value has the gradient of the decision's *own* log-prob, as in GSPO-token (section 4.3 of that paper):
    d/d log_probs is 1 on the diagonal, for every importance. Where a row's decisions have equal advantages and
    weights, the row's total gradient is that of the shared ratio itself (GSPO), and a loss stays a sum over decisions.

    The whole row must be at hand, unless importance is "token". No gradient reaches `old_log_probs`.

    >>> import torch
    >>> up = torch.tensor([[0.2, 0.4]])
    >>> importance_log_ratio(up, torch.zeros(1, 2), up > 0, "sequence")
    tensor([[0.3000, 0.3000]])
    """
    check_shapes("B T", log_probs=log_probs, old_log_probs=old_log_probs, mask=mask)
    # bfloat16 has no number between 1 and 1.0078: a ratio in it cannot see a clip range of 1e-4.
    check_dtypes("float32", log_probs=log_probs, old_log_probs=old_log_probs)
    check_dtypes("bool", mask=mask)
    own = (log_probs - old_log_probs.detach()).where(mask, 0.0)
    if importance == "token":
        return own.clamp(max=LARGEST)
    shared = own.detach().sum(1, keepdim=True)
    if importance == "sequence":
        shared = shared / mask.sum(1, keepdim=True).clamp(min=1)
    elif importance != "trajectory":
        raise ValueError(f"importance: expected 'token', 'sequence' or 'trajectory', got {importance!r}")
    return (shared + (own - own.detach())).where(mask, 0.0).clamp(max=LARGEST)


def engine_weights(
    log_ratio: Tensor,  # [B, T] log-probability under the trainer minus that under the engine
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
    cap: float,
    level: Literal["token", "sequence"] = "token",
    beyond: Literal["truncate", "mask"] = "truncate",
) -> tuple[Tensor, Tensor]:  # [B, T] weights, 0 where masked; [B, T] bool, True where the cap applied
    """Weight decisions that an engine sampled by pi / mu, limited to `cap`: importance sampling (Ionides 2008).

    `level` token weights each decision by its own ratio; sequence weights all decisions of a row by their product,
    which is the weight of the whole answer. A weight beyond the cap becomes the cap (truncate), or 0 (mask).

    >>> import torch
    >>> log_ratio = torch.tensor([2.0, 3.0]).log()[None]
    >>> mask = torch.ones(1, 2, dtype=torch.bool)
    >>> [engine_weights(log_ratio, mask, 2.5, level, beyond)[0][0].tolist()
    ...  for level in ("token", "sequence") for beyond in ("truncate", "mask")]
    [[2.0, 2.5], [2.0, 0.0], [2.5, 2.5], [0.0, 0.0]]
    """
    check_shapes("B T", log_ratio=log_ratio, mask=mask)
    if cap <= 0:
        raise ValueError(f"cap: expected a number > 0, got {cap}")
    kept = log_ratio.where(mask, 0.0)
    if level == "sequence":
        kept = kept.sum(1, keepdim=True).expand_as(kept)
    weights = kept.exp()
    limited = (weights > cap) & mask
    within = weights.clamp(max=cap) if beyond == "truncate" else weights.where(weights <= cap, 0.0)
    return within.where(mask, 0.0), limited
