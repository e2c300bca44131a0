"""Policy losses straight from hidden states: the logits of a few rows become loss and gradients, and are gone."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl_kernels.ops.linear_logprob.checks import check_head, check_ids, check_rows
from mmrl_kernels.ops.linear_logprob.head import Head
from mmrl_kernels.ops.linear_policy_loss.fused import fused_policy_loss
from mmrl_kernels.ops.linear_policy_loss.losses import CISPO, DPO, GSPO, Clip, Decisions, SequenceLoss, TokenLoss
from mmrl_kernels.ops.linear_policy_loss.result import PolicyLoss
from mmrl_kernels.ops.linear_policy_loss.two_pass import two_pass_policy_loss

__all__ = ["CISPO", "DPO", "GSPO", "Clip", "PolicyLoss", "linear_policy_loss"]

_NEEDED_BY_SOME = ("old_log_probs", "advantages", "sequence_index")


def linear_policy_loss(
    hidden: Tensor,  # [N, H] float; what the output layer reads, one row for each token that was decided on
    weight: Tensor,  # [V, H] float, of the same dtype unless autocast is on
    targets: Tensor,  # [N] int64 in [0, V)
    loss: TokenLoss | SequenceLoss,
    *,
    weights: Tensor,  # [N]; the loss is the weighted sum of the rows' terms. 0 = not a decision, whatever the row holds
    old_log_probs: Tensor | None = None,  # [N] as sampled: Clip, CISPO, GSPO
    advantages: Tensor | None = None,  # [N]: Clip, CISPO, GSPO
    sequence_index: Tensor | None = None,  # [N] int64 >= 0, the answer that a row belongs to: GSPO, DPO
    reference_log_probs: Tensor | None = None,  # [N]: DPO, and the KL of the others
    kl_coef: float = 0.0,  # of k3 to the reference, added to each term
    bias: Tensor | None = None,  # [V]
    temperature: float = 1.0,  # > 0
    suppressed: Tensor | None = None,  # [S] int64; tokens whose probability is 0
) -> PolicyLoss:
    """sum(weights * (term + kl_coef * k3)), of terms as `loss` says: `Clip`, `CISPO`, `GSPO` or `DPO`.

    Log-probs are those of `linear_logprob`, and [N, V] never exists. `Clip` and `CISPO` need one pass: the gradients
    are computed together with the loss, and the backward pass only scales them (3 GEMMs, as in plain torch). It can run
    once. `GSPO` and `DPO` need the log-probs of whole answers first, so that the backward pass computes the logits
    again, unless the output layer is frozen. Rows of weight 0 cost nothing.

    Gradients reach `hidden`, `weight` and `bias`, through `loss` only. float16 has no room for gradients that are
    ready before a gradient scaler sees the loss: use bfloat16.

    Raises:
        ValueError: a tensor that `loss` needs is missing, or one that it has no use for is given; shapes, dtypes, ids.
        RuntimeError: a second backward pass through a one-pass loss.

    >>> import torch
    >>> hidden, weight = torch.zeros(2, 4, requires_grad=True), torch.randn(3, 4)
    >>> known = dict(old_log_probs=torch.full((2,), -1.0986), advantages=torch.tensor([1.0, -3.0]))
    >>> targets, half = torch.tensor([0, 2]), torch.full((2,), 0.5)
    >>> round(linear_policy_loss(hidden, weight, targets, Clip(0.2, 0.2), weights=half, **known).loss.item(), 3)
    1.0
    """
    check_head(hidden, weight, targets, bias, temperature, suppressed)
    known = {
        "old_log_probs": old_log_probs,
        "advantages": advantages,
        "sequence_index": sequence_index,
        "reference_log_probs": reference_log_probs,
    }
    _check_known(loss, known, kl_coef)
    check_rows(hidden, weights=weights, **known)
    if sequence_index is not None:
        check_ids("sequence_index", sequence_index, len(sequence_index))
    head = Head(weight, bias, temperature, suppressed)
    decisions = Decisions(weights.detach(), **{n: None if t is None else t.detach() for n, t in known.items()})
    if isinstance(loss, TokenLoss):
        return fused_policy_loss(hidden, head, targets, loss, decisions, kl_coef)
    return two_pass_policy_loss(hidden, head, targets, loss, decisions, kl_coef)


def _check_known(loss: TokenLoss | SequenceLoss, known: dict[str, Tensor | None], kl_coef: float) -> None:
    kind = type(loss).__name__
    if missing := sorted(name for name in loss.needs if known[name] is None):
        raise ValueError(f"{kind} needs {', '.join(missing)}: give [N] of each")
    if idle := [name for name in _NEEDED_BY_SOME if known[name] is not None and name not in loss.needs]:
        raise ValueError(f"{kind} has no use for {', '.join(idle)}: leave them out")
    if kl_coef and known["reference_log_probs"] is None:
        raise ValueError(f"kl_coef={kl_coef} needs reference_log_probs: give [N], or kl_coef=0")
    if kl_coef < 0:
        raise ValueError(f"kl_coef: expected a number >= 0, got {kl_coef}")
    for name in ("old_log_probs", "reference_log_probs"):
        tensor = known[name]
        if tensor is not None and tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name}: expected float32 or float64, got {tensor.dtype}; half precision swallows a ratio"
            )
