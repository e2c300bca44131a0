"""Sampling of tokens from logits, and classifier-free guidance of logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmrl.checks import check_shapes


def sample_tokens(
    logits: Tensor,  # [B, V] float32 at the sampling temperature; -inf = never
    generator: torch.Generator | None,  # None: greedy
    top_p: float = 1.0,
    top_k: int | None = None,
) -> Tensor:  # [B] int64
    """Sample one token for each row by the Gumbel trick: argmax of p / E with E exponential.

    Two policies with equally seeded generators sample equal tokens where their distributions agree, which makes a
    comparison of the two a paired one.
    """
    noise = None if generator is None else torch.empty_like(logits).exponential_(generator=generator)
    return sample_with_noise(logits, noise, top_p, top_k)


def sample_with_noise(
    logits: Tensor,  # [B, V] float32 at the sampling temperature; -inf = never
    noise: Tensor | None,  # [B, V] exponential random numbers; None: greedy
    top_p: float = 1.0,
    top_k: int | None = None,
) -> Tensor:  # [B] int64
    """Sample one token for each row as `sample_tokens` does, with noise that is given.

    >>> sample_with_noise(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 1.0]]))
    tensor([1])
    """
    if noise is None:
        return logits.argmax(-1)
    return (_truncated(logits, top_p, top_k).softmax(-1) / noise).argmax(-1)


def _truncated(logits: Tensor, top_p: float, top_k: int | None) -> Tensor:
    """Return the logits with -inf for tokens excluded by top-k and nucleus sampling (arXiv:1904.09751)."""
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        shares = ordered.softmax(-1)
        beyond = shares.cumsum(-1) - shares >= top_p  # the tokens before it reach top_p
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -math.inf)
    return logits


def guided_logits(
    cond: Tensor,  # [B, K, V] logits after the prompt
    uncond: Tensor,  # [B, K, V] logits after the empty or the negative prompt
    scale: float,
) -> Tensor:  # [B, K, V], in the wider dtype of float32 and theirs
    """Return uncond + scale · (cond - uncond): guidance (arXiv:2207.12598) applied to logits (arXiv:2306.05284).

    The policy is the softmax of the result: log-probabilities, ratios and gradients are those of the mixture, and
    gradients reach both inputs, `cond` with the factor `scale` and `uncond` with 1 - `scale`.

    Raises:
        ShapeError: the two differ in shape.

    >>> import torch
    >>> guided_logits(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[1.0, 0.0]]]), 2.0)
    tensor([[[5., 0.]]])
    """
    check_shapes("B K V", cond=cond, uncond=uncond)
    cond, uncond = (each if each.element_size() > 2 else each.float() for each in (cond, uncond))
    return uncond + scale * (cond - uncond)
