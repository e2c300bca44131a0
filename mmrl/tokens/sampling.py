"""Drawing a token from a distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmrl.checks import check_shapes


def draw_tokens(
    logits: Tensor,  # [B, V] float32 at the sampling temperature; -inf = never
    generator: torch.Generator | None,  # None: the likeliest token
    top_p: float = 1.0,
    top_k: int | None = None,
) -> Tensor:  # [B] int64
    """One token a row, by the Gumbel trick: argmax of p / E with E exponential.

    Two policies that draw with equal generators draw alike wherever their distributions agree, so that their
    difference is a paired one.
    """
    if generator is None:
        return logits.argmax(-1)
    kept = _truncated(logits, top_p, top_k)
    noise = torch.empty_like(kept).exponential_(generator=generator)
    return (kept.softmax(-1) / noise).argmax(-1)


def _truncated(logits: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """The logits with -inf for what top-k and nucleus sampling (arXiv:1904.09751) leave out."""
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        shares = ordered.softmax(-1)
        beyond = shares.cumsum(-1) - shares >= top_p  # what comes before it is enough
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -math.inf)
    return logits


# Guidance of token policies: the distribution that is sampled is a mixture of two.


def guided_logits(
    asked: Tensor,  # [B, K, V] logits after the prompt
    unasked: Tensor,  # [B, K, V] logits after the empty or the negative prompt
    scale: float,
) -> Tensor:  # [B, K, V], in the wider dtype of float32 and theirs
    """unasked + scale · (asked - unasked): classifier-free guidance (arXiv:2207.12598) on logits (arXiv:2306.05284).

    What is sampled is the softmax of this, so log-probabilities, ratios and gradients are those of the mixture, and
    gradients reach both rows: asked by `scale`, unasked by 1 - `scale`.

    Raises:
        ShapeError: the two differ in shape.

    >>> import torch
    >>> guided_logits(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[1.0, 0.0]]]), 2.0)
    tensor([[[5., 0.]]])
    """
    check_shapes("B K V", asked=asked, unasked=unasked)
    asked, unasked = (each if each.element_size() > 2 else each.float() for each in (asked, unasked))
    return unasked + scale * (asked - unasked)
