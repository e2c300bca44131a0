"""Log-probabilities of given tokens under an output layer, without holding the logits of more than a few rows."""

from __future__ import annotations

from torch import Tensor

from mmrl_kernels.ops.linear_logprob.autograd import GradHint, linear_log_probs
from mmrl_kernels.ops.linear_logprob.checks import check_head
from mmrl_kernels.ops.linear_logprob.head import Head

__all__ = ["GradHint", "linear_logprob", "linear_logprob_entropy"]


def linear_logprob(
    hidden: Tensor,  # [N, H] float; what the output layer reads, one row for each token that is to be scored
    weight: Tensor,  # [V, H] float, of the same dtype unless autocast is on
    targets: Tensor,  # [N] int64 in [0, V)
    *,
    bias: Tensor | None = None,  # [V]
    temperature: float = 1.0,  # > 0
    suppressed: Tensor | None = None,  # [S] int64; tokens whose probability is 0
    grad_hint: GradHint | None = None,  # (log-probs [n], rows [n] int64) -> [n]
) -> Tensor:  # [N] float32 (float64 of float64) in nats, <= 0; carries the graph
    """log softmax((hidden @ weight.T + bias) / temperature)[targets], `suppressed` tokens left out of the softmax.

    The logits are computed for a few rows at a time and thrown away, so that [N, V] never exists. The GEMMs run in the
    operands' dtype, or in autocast's where it is on; the softmax is float32, and weight gradients add up in float32.

    Gradients reach `hidden`, `weight` and `bias`. Where `weight` or `bias` needs one, the backward pass computes the
    logits again (4 GEMMs instead of 3); with a frozen output layer the forward pass prepares the gradient of `hidden`,
    and nothing is computed twice. Rows whose incoming gradient is 0 cost nothing in the backward pass.

    A caller that knows its loss's derivative in some rows' log-probs passes it as `grad_hint` while the logits exist:
    all gradients are then made in the same pass. If the gradient that arrives later differs from the hint (apart from a
    common factor and rounding, 1e-5 of its largest entry), the logits are computed again and the hint has no effect.

    A suppressed target has log-probability minus infinity.

    Raises:
        ValueError: shapes, dtypes, devices, the temperature, or token ids (those only on a CPU, where looking is free).

    >>> import torch
    >>> linear_logprob(torch.zeros(1, 4), torch.randn(2, 4), torch.tensor([1]))
    tensor([-0.6931])
    """
    check_head(hidden, weight, targets, bias, temperature, suppressed)
    return linear_log_probs(
        hidden, Head(weight, bias, temperature, suppressed), targets, entropy=False, grad_hint=grad_hint
    )[0]


def linear_logprob_entropy(
    hidden: Tensor,  # [N, H] float
    weight: Tensor,  # [V, H] float, of the same dtype unless autocast is on
    targets: Tensor,  # [N] int64 in [0, V)
    *,
    bias: Tensor | None = None,  # [V]
    temperature: float = 1.0,  # > 0
    suppressed: Tensor | None = None,  # [S] int64; tokens whose probability is 0
    grad_hint: GradHint | None = None,
) -> tuple[Tensor, Tensor]:  # [N] as `linear_logprob`; [N] entropy in nats, >= 0, without a graph
    """`linear_logprob`, and how undecided the layer was at each row: one more reduction of the same logits.

    Raises:
        ValueError: as `linear_logprob`.

    >>> import torch
    >>> [each.item() for each in linear_logprob_entropy(torch.zeros(1, 4), torch.randn(1, 4), torch.tensor([0]))]
    [0.0, 0.0]
    """
    check_head(hidden, weight, targets, bias, temperature, suppressed)
    head = Head(weight, bias, temperature, suppressed)
    log_probs, entropy = linear_log_probs(hidden, head, targets, entropy=True, grad_hint=grad_hint)
    assert entropy is not None
    return log_probs, entropy
