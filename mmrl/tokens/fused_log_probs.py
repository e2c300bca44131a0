"""From a language model's last states to log-probabilities, without ever holding the logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from mmrl.policy import LossGradFn
from mmrl_kernels.ops.linear_logprob import GradHint, linear_logprob_entropy

MOST_LOGITS = 2**28
"""Bytes of float32 logits that are held without a second thought."""


def fuses(wanted: Literal["auto"] | bool, tokens: int, vocabulary: int) -> bool:
    """Whether so many tokens are scored a few at a time."""
    return 4 * tokens * vocabulary > MOST_LOGITS if wanted == "auto" else wanted


def plain_head(model: Any) -> nn.Linear | None:
    """The output layer of a language model; None where its logits are more than that layer's product."""
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    scaled = getattr(text, "final_logit_softcapping", None) or getattr(text, "logits_scaling", None)
    return head if type(head) is nn.Linear and not scaled else None


def log_probs_of(
    states: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    bias: Tensor | None,  # [V]
    tokens: Tensor,  # [M] int64
    temperature: float,
    suppressed: Tensor | None = None,  # [S] int64
    grad_hint: GradHint | None = None,
) -> tuple[Tensor, Tensor]:  # [M] float32 with a graph, [M] entropies in nats without
    """As `token_log_probs` of `scored_logits`, which are computed a few rows at a time.

    And again going backward, unless the layer is frozen or the gradient that comes in was foreseen.
    """
    return linear_logprob_entropy(
        states, weight, tokens, bias=bias, temperature=temperature or 1.0, suppressed=suppressed, grad_hint=grad_hint
    )


# The derivative of a loss, passed to a policy before its replay, so that the output layer's gradients are made at once.
#
# Scored a few rows at a time, an output layer that is trained would compute its logits twice, once for the log-probs
# and once more when their gradient comes in (`mmrl_kernels.linear_logprob`).


class FusedLossMixin:
    """The part of a policy that can be told (power FORESEE)."""

    _slope: LossGradFn | None = None

    @contextmanager
    def fused_loss(self, slope: LossGradFn) -> Iterator[None]:
        """While open, replays with gradients expect this derivative."""
        before, self._slope = self._slope, slope
        try:
            yield
        finally:
            self._slope = before


def at_places(slope: LossGradFn | None, rows: Tensor, step_indices: Tensor) -> GradHint | None:
    """The same of a list of decisions: `rows` and `step_indices` [M] say where each stands."""
    return None if slope is None else lambda log_probs, at: slope(log_probs, rows[at], step_indices[at])
