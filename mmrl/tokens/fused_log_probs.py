"""Log-probabilities from a language model's last hidden states, without materialised logits.

Logits are computed a few rows at a time. In the backward pass a trained output layer would have to compute them once
more, when the gradient of the log-probabilities comes in. A fused loss avoids this: its derivative is passed to the
policy before the replay (`FusedLossMixin`), so that the gradients of the output layer are computed in the forward pass
(`mmrl_kernels.ops.linear_logprob`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from mmrl.policy import LossGradFn
from mmrl_kernels.ops.linear_logprob import GradHint, linear_logprob_entropy

MAX_LOGITS_BYTES = 2**28
"""Bytes of float32 logits up to which `auto` materialises them."""


def uses_fused_head(setting: Literal["auto"] | bool, tokens: int, vocabulary: int) -> bool:
    """Return True if the logits of that many tokens should not be materialised at once."""
    return 4 * tokens * vocabulary > MAX_LOGITS_BYTES if setting == "auto" else setting


def linear_head(model: Any) -> nn.Linear | None:
    """Return the output layer of a language model; None if its logits are not just the product with that layer."""
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    scaled = getattr(text, "final_logit_softcapping", None) or getattr(text, "logits_scaling", None)
    return head if type(head) is nn.Linear and not scaled else None


def head_log_probs(
    states: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    bias: Tensor | None,  # [V]
    tokens: Tensor,  # [M] int64
    temperature: float,
    suppressed: Tensor | None = None,  # [S] int64
    grad_hint: GradHint | None = None,
) -> tuple[Tensor, Tensor]:  # [M] float32 with a graph, [M] entropies in nats without
    """Return `token_log_probs` of `scored_logits`, with the logits computed a few rows at a time.

    The backward pass computes them again, unless the layer is frozen or `grad_hint` predicts the incoming gradient.
    """
    return linear_logprob_entropy(
        states, weight, tokens, bias=bias, temperature=temperature or 1.0, suppressed=suppressed, grad_hint=grad_hint
    )


class FusedLossMixin:
    """The part of a policy that accepts a loss derivative (`Capability.FUSED_LOSS`)."""

    _loss_grad: LossGradFn | None = None

    @contextmanager
    def fused_loss(self, loss_grad: LossGradFn) -> Iterator[None]:
        """While open, replays with gradients use this loss derivative."""
        before, self._loss_grad = self._loss_grad, loss_grad
        try:
            yield
        finally:
            self._loss_grad = before


def grad_hint_at(loss_grad: LossGradFn | None, rows: Tensor, step_indices: Tensor) -> GradHint | None:
    """Return the gradient hint of a list of M tokens, or None without a derivative.

    `rows` and `step_indices` [M] int64 are the positions of the tokens in the batch.
    """
    return None if loss_grad is None else lambda log_probs, at: loss_grad(log_probs, rows[at], step_indices[at])
