"""The softmax over rows of logits in plain torch: log-probs, entropies, and the gradient in place of the logits."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl_kernels.ops.linear_logprob.sizes import rows_per_tile


def softmax_rows(
    logits: Tensor,  # [n, V] any floating dtype; overwritten if `residual`
    targets: Tensor,  # [n] int64
    *,
    entropy: bool,
    residual: bool,
) -> tuple[Tensor, Tensor | None]:  # [n] log-probs of the targets, [n] entropies; float32, or wider
    """Return log-probs in nats and optional entropies; with `residual` the logits become softmax - onehot(target).

    A logit at the lowest number of its dtype stands for a token that is suppressed: its probability is 0, as a target
    its log-prob is minus infinity, and its residual is 0.

    Rows are taken few at a time, so that the float32 numbers of one tile stay in the processor's cache.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    lowest = torch.finfo(logits.dtype).min
    log_probs = torch.empty(len(logits), dtype=wide, device=logits.device)
    entropies = torch.empty_like(log_probs) if entropy else None
    size = rows_per_tile(logits.shape[1], wide.itemsize, logits.device.type)
    shifted_tiles, powers_tiles = (torch.empty_like(logits[:size], dtype=wide) for _ in range(2))
    for first in range(0, len(logits), size):
        tile, target = logits[first : first + size], targets[first : first + size, None]
        shifted, powers = shifted_tiles[: len(tile)], powers_tiles[: len(tile)]
        allowed = tile.gather(1, target) > lowest
        torch.sub(tile, tile.amax(1, keepdim=True).to(wide), out=shifted)  # `wide`: or it subtracts in half precision
        torch.exp(shifted, out=powers)
        total = powers.sum(1, keepdim=True)
        chosen = (shifted.gather(1, target) - total.log()).where(allowed, -torch.inf)
        log_probs[first : first + size] = chosen[:, 0]
        if entropies is not None:
            entropies[first : first + size] = total.log()[:, 0] - shifted.mul_(powers).sum(1) / total[:, 0]
        if residual:
            powers.scatter_add_(1, target, -total * allowed)
            torch.mul(powers, 1 / total, out=tile)
    return log_probs, entropies
