"""Log-probabilities of sampled tokens under the sampled distribution: same temperature, same suppressed tokens.

`token_log_probs` reads logits. `head_log_probs` reads last hidden states and computes the logits a few rows at a time;
with the derivative of a fused loss (`TokenPolicy.fused_loss`), which is known before the replay, the gradients of a
trained output layer are computed in the forward pass, and the logits once (`mmrl_kernels.ops.linear_logprob`).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mmrl.checks import check_shapes
from mmrl.policy import LossGradFn
from mmrl_kernels.ops.linear_logprob import GradHint, linear_logprob_entropy


class TokenScores(NamedTuple):
    """The numbers that a policy gives to tokens; all have the shape of the tokens."""

    log_probs: Tensor  # float32, with a graph
    entropy: Tensor  # float32, in nats, of the distribution that each was sampled from; without a graph
    mean_log_probs: Tensor  # float32, the mean over all tokens that can be sampled there; without a graph


def scored_logits(
    logits: Tensor,  # [..., V], any floating dtype
    temperature: float,
    suppressed: Tensor | None = None,  # [S] int64; tokens that are never sampled
) -> Tensor:  # [..., V] float32
    """Return the logits of the sampled distribution. Temperature 0 gives the logits at temperature 1.

    Raises:
        ValueError: the temperature is negative.
    """
    if temperature < 0:
        raise ValueError(f"temperature: expected a number >= 0, got {temperature}")
    scaled = logits.float() / (temperature or 1.0)
    return scaled if suppressed is None else scaled.index_fill(-1, suppressed, -math.inf)


def token_log_probs(
    logits: Tensor,  # [B, K, V] float32, returned by `scored_logits`
    tokens: Tensor,  # [B, K] int64
) -> TokenScores:  # [B, K]
    """Return the log-probability of each token, and the entropy and mean of the distribution that it was sampled from.

    >>> logits = torch.tensor([[[0.0, 0.0]]])
    >>> [round(each.item(), 4) for each in token_log_probs(logits, torch.tensor([[1]]))]
    [-0.6931, 0.6931, -0.6931]
    """
    check_shapes("B K", dict(zip("BK", logits.shape[:2], strict=True)), tokens=tokens)
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, tokens[..., None])[..., 0] - normaliser
    with torch.no_grad():
        all_log_probs = logits - normaliser[..., None]
        # A suppressed token has probability 0 and log-probability -inf; clamping makes their product 0.
        entropy = -(all_log_probs.exp() * all_log_probs.clamp(min=torch.finfo(logits.dtype).min)).sum(-1)
        allowed = logits > -math.inf
        mean = all_log_probs.where(allowed, 0.0).sum(-1) / allowed.sum(-1)
    return TokenScores(chosen, entropy, mean)


MAX_LOGITS_BYTES = 2**28
"""Bytes of float32 logits up to which `auto` materialises them."""
_SCALES = ("final_logit_softcapping", "logits_scaling", "output_multiplier", "logits_mup_width_multiplier")
"""Settings of language models that change their logits after the output layer."""


def uses_fused_head(setting: Literal["auto"] | bool, tokens: int, vocabulary: int) -> bool:
    """Return True if the logits of that many tokens should not be materialised at once."""
    return 4 * tokens * vocabulary > MAX_LOGITS_BYTES if setting == "auto" else setting


def linear_head(model: Any) -> nn.Linear | None:
    """Return the output layer of a language model; None if its logits are not just the product with that layer.

    The states before the layer are those of `model.base_model`, which some models do not have.
    """
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    scaled = hasattr(model, "logit_scale") or any(getattr(text, name, None) for name in _SCALES)
    return head if type(head) is nn.Linear and not scaled and model.base_model is not model else None


def head_log_probs(
    states: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    bias: Tensor | None,  # [V]
    tokens: Tensor,  # [M] int64
    temperature: float,
    suppressed: Tensor | None = None,  # [S] int64
    grad_hint: GradHint | None = None,
) -> TokenScores:  # [M]
    """Return `token_log_probs` of `scored_logits`, with the logits computed a few rows at a time.

    The backward pass computes them again, unless the layer is frozen or `grad_hint` predicts the incoming gradient.
    The layer is linear, so the mean logit is that of its mean row: it needs no logits.
    """
    chosen, entropy = linear_logprob_entropy(
        states, weight, tokens, bias=bias, temperature=temperature or 1.0, suppressed=suppressed, grad_hint=grad_hint
    )
    with torch.no_grad():
        mean = chosen + _mean_over_token(states, weight, tokens, bias, suppressed) / (temperature or 1.0)
    return TokenScores(chosen, entropy, mean)


def _mean_over_token(
    states: Tensor,  # [M, D]
    weight: Tensor,  # [V, D]
    tokens: Tensor,  # [M]
    bias: Tensor | None,  # [V]
    suppressed: Tensor | None,  # [S]
    rows: int = 1024,
) -> Tensor:  # [M] float32
    """Return the mean of the logits that are not suppressed, less the logit of the token; few rows at a time."""
    kept = len(weight) - (0 if suppressed is None else len(suppressed))
    row = weight.sum(0, dtype=torch.float32)
    offset = 0.0 if bias is None else bias.sum(dtype=torch.float32)
    if suppressed is not None:
        row = row - weight[suppressed].sum(0, dtype=torch.float32)
        offset = offset if bias is None else offset - bias[suppressed].sum(dtype=torch.float32)
    found = [
        ((row / kept - weight[part].float()) * state.float()).sum(-1)
        for part, state in zip(tokens.split(rows), states.split(rows), strict=True)
    ]
    differences = torch.cat(found)
    return differences if bias is None else differences + offset / kept - bias[tokens].float()


def grad_hint_at(loss_grad: LossGradFn | None, rows: Tensor, step_indices: Tensor) -> GradHint | None:
    """Return the gradient hint of a list of M tokens, or None without a derivative.

    `rows` and `step_indices` [M] int64 are the positions of the tokens in the batch.
    """
    return None if loss_grad is None else lambda log_probs, at: loss_grad(log_probs, rows[at], step_indices[at])
