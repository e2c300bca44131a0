"""From a language model's last states to log-probabilities, with or without holding the logits."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from mmrl.tokens.log_probs import scored_logits, token_log_probs
from mmrl_kernels import linear_logprob_entropy

MOST_LOGITS = 2**28
"""Bytes of float32 logits that are held without a second thought."""


def fuses(wanted: Literal["auto"] | bool, model: Any, tokens: int) -> bool:
    """Whether so many tokens are scored without holding their logits. A head that is more than a matrix is not."""
    if wanted is False or plain_head(model) is None:
        return False
    return wanted is True or 4 * tokens * plain_head(model).out_features > MOST_LOGITS


def plain_head(model: Any) -> Any:  # nn.Linear, or None
    """The output layer of a language model, where logits are nothing but its product with the states."""
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    scaled = getattr(text, "final_logit_softcapping", None) or getattr(text, "logits_scaling", None)
    return head if type(head) is nn.Linear and not scaled else None


def log_probs_of(
    head: nn.Linear,
    states: Tensor,  # [M, H]
    tokens: Tensor,  # [M] int64
    temperature: float,
    suppressed: Tensor | None = None,  # [S] int64
) -> tuple[Tensor, Tensor]:  # [M] float32 with a graph, [M] entropies in nats without
    """As `token_log_probs` of `scored_logits`, but the logits exist a few rows at a time."""
    return linear_logprob_entropy(
        states, head.weight, tokens, bias=head.bias, temperature=temperature or 1.0, suppressed=suppressed
    )


def log_probs_from_logits(
    logits: Tensor,  # [M, V]
    tokens: Tensor,  # [M] int64
    temperature: float,
    suppressed: Tensor | None = None,  # [S] int64
) -> tuple[Tensor, Tensor]:  # [M] float32 with a graph, [M] entropies in nats without
    """The same where logits are at hand."""
    chosen, entropy = token_log_probs(scored_logits(logits[None], temperature, suppressed), tokens[None])
    return chosen[0], entropy[0]
