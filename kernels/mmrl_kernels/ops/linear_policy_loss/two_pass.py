"""Sequence losses: the log-probs of whole answers first, then their gradients from logits computed again."""

from __future__ import annotations

from torch import Tensor

from mmrl_kernels.ops.linear_logprob.autograd import linear_log_probs
from mmrl_kernels.ops.linear_logprob.head import Head
from mmrl_kernels.ops.linear_policy_loss.losses import Decisions, SequenceLoss
from mmrl_kernels.ops.linear_policy_loss.result import PolicyLoss, spread, weighted_terms


def two_pass_policy_loss(
    hidden: Tensor,  # [N, H]
    head: Head,
    targets: Tensor,  # [N] int64
    loss: SequenceLoss,
    decisions: Decisions,
    kl_coef: float,
) -> PolicyLoss:
    """What `linear_policy_loss` says, of checked arguments."""
    kept, size = decisions.weights.nonzero()[:, 0], len(hidden)
    if len(kept) < size:
        hidden, targets, decisions = hidden[kept], targets[kept], decisions.at(kept)
    log_probs, entropy = linear_log_probs(hidden, head, targets, entropy=True)
    assert entropy is not None
    objective, clipped, kl = weighted_terms(log_probs, decisions, loss, kl_coef)
    return PolicyLoss(
        objective.sum(),
        spread(log_probs.detach(), kept, size),
        spread(entropy, kept, size),
        spread(clipped, kept, size),
        None if kl is None else spread(kl.detach(), kept, size),
    )
