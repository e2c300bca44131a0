"""Divergence from the reference: estimators for tokens, distances for flows.

Token estimators give one number a decision, on decisions that the *policy* drew, and 0 where masked. Their values
all estimate KL(policy || reference). As losses they differ (arXiv:2506.09477, arXiv:2510.01555): the expected
gradient of k1 is 0, of k2 that of KL(policy || reference), of k3 that of KL(reference || policy); `kl_weighted_k3` puts
the last right. No gradient reaches the reference.
"""

from __future__ import annotations

import math

from torch import Tensor

from mmrl.algorithms.forward_process import at_least_float32, velocity_mse
from mmrl.algorithms.importance import importance_log_ratio
from mmrl.checks import check_dtypes, check_shapes


def kl_k1(
    log_probs: Tensor,  # [B, T]
    reference_log_probs: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T], any sign; 0 where masked
    """log(p / q), unbiased and of high variance (Schulman, joschu.net/blog/kl-approx.html). No use as a loss."""
    return _log_ratio(log_probs, reference_log_probs, mask)


def kl_k1_loss(
    log_probs: Tensor,  # [B, T]
    old_log_probs: Tensor,  # [B, T] as sampled
    reference_log_probs: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T], any sign; 0 where masked
    """ratio * log(p_old / q): the log-ratio at sampling time as the cost of a decision, as in a policy gradient.

    Unlike k1 itself it may be a loss: its expected gradient is that of KL(policy || reference).
    """
    ratio = importance_log_ratio(log_probs, old_log_probs, mask).exp()
    return ratio * _log_ratio(old_log_probs.detach(), reference_log_probs, mask)


def kl_k2(
    log_probs: Tensor,  # [B, T]
    reference_log_probs: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T], >= 0; 0 where masked
    """log(p / q)^2 / 2: biased in value, and the one whose gradient is that of KL(policy || reference)."""
    return _log_ratio(log_probs, reference_log_probs, mask) ** 2 / 2


def kl_k3(
    log_probs: Tensor,  # [B, T]
    reference_log_probs: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T], >= 0; 0 where masked
    """q/p - 1 - log(q/p): unbiased, of low variance, never negative; GRPO's penalty (arXiv:2402.03300)."""
    d = -_log_ratio(log_probs, reference_log_probs, mask)
    return d.expm1() - d


def kl_weighted_k3(
    log_probs: Tensor,  # [B, T]
    old_log_probs: Tensor,  # [B, T] as sampled
    reference_log_probs: Tensor,  # [B, T]
    mask: Tensor,  # [B, T] bool
) -> Tensor:  # [B, T], >= 0; 0 where masked
    """k3 times the decision's ratio of new to old probability (DeepSeek-V3.2, arXiv:2512.02556, equation 7).

    On decisions that an *older* policy drew it still estimates KL(policy || reference), and since the ratio is
    differentiated too, its expected gradient is that of KL(policy || reference) as well. trl's default.
    """
    ratio = importance_log_ratio(log_probs, old_log_probs, mask).exp()
    return ratio * kl_k3(log_probs, reference_log_probs, mask)


def gaussian_mean_distance(
    mean: Tensor,  # [B, ...] of the transition under the policy
    reference_mean: Tensor,  # [B, ...] of the transition from the same state under the reference
    std: Tensor,  # [B], of both; 0 = deterministic, not a decision
) -> Tensor:  # [B], >= 0; 0 where std is 0
    """Mean over latent dimensions of (mean - reference_mean)^2 / (2 std^2): Flow-GRPO's KL, arXiv:2505.05470.

    The KL divergence of two Gaussians of equal spread, divided by their number of dimensions, as the log-probs of
    denoising steps are. `std` is that of the whole transition, s * sqrt(-dt). flow_grpo's code passes s alone, and so
    its penalty is smaller by the factor -dt (yifan123/flow_grpo issue #78): published coefficients belong to that s.
    """
    sizes = check_shapes("B ...", mean=mean, reference_mean=reference_mean)
    check_shapes("B", {"B": sizes["B"]}, std=std)
    decided = std > 0
    variance = at_least_float32(std).where(decided, 1.0) ** 2
    return (velocity_mse(mean, reference_mean) / (2 * variance)).where(decided, 0.0)


def gaussian_entropy(
    std: Tensor,  # of each Gaussian, > 0
) -> Tensor:  # as `std`
    """Return the differential entropy of Gaussians in nats a dimension, log(std) + log(2 pi e) / 2."""
    return std.log() + 0.5 * (1 + math.log(2 * math.pi))


def _log_ratio(log_probs: Tensor, reference_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return log p - log q, and 0 with a zero gradient where masked, for any content of the padding."""
    check_shapes("B T", log_probs=log_probs, reference_log_probs=reference_log_probs, mask=mask)
    check_dtypes("float32", log_probs=log_probs, reference_log_probs=reference_log_probs)
    check_dtypes("bool", mask=mask)
    return (log_probs - reference_log_probs.detach()).where(mask, 0.0)
