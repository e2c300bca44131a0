"""Log-probabilities of sampled tokens under the sampled distribution: same temperature, same suppressed tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmrl.checks import check_shapes


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
) -> tuple[Tensor, Tensor]:  # [B, K] float32 log-probabilities with a graph, [B, K] entropies in nats without
    """Return the log-probability of each token, and the entropy of the distribution that it was sampled from.

    >>> logits = torch.tensor([[[0.0, 0.0]]])
    >>> [round(each.item(), 4) for each in token_log_probs(logits, torch.tensor([[1]]))]
    [-0.6931, 0.6931]
    """
    check_shapes("B K", dict(zip("BK", logits.shape[:2], strict=True)), tokens=tokens)
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, tokens[..., None])[..., 0] - normaliser
    with torch.no_grad():
        all_log_probs = logits - normaliser[..., None]
        # A suppressed token has probability 0 and log-probability -inf; clamping makes their product 0.
        entropy = -(all_log_probs.exp() * all_log_probs.clamp(min=torch.finfo(logits.dtype).min)).sum(-1)
    return chosen, entropy
