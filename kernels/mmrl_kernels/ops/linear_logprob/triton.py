"""The softmax over rows of logits as one kernel: log-probs, entropies, and the gradient in place of the logits.

The GEMMs around it stay torch's: a row is read once for the statistics and once more, mostly from the cache, where it
is overwritten. The portable form reads and writes it about eight times.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def softmax_rows_kernel(
    logits,  # [n, V], rows `stride` apart
    targets,  # [n] int64
    log_probs,  # [n] float32, out
    entropies,  # [n] float32, out if ENTROPY
    columns,
    stride,
    lowest,  # a logit that is no greater stands for a suppressed token
    ENTROPY: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Process one row per program."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    target = tl.load(targets + row)
    chosen = tl.load(base + target).to(tl.float32)
    greatest = -3.0e38  # not minus infinity, which times a sum of 0 is NaN
    total = 0.0  # of exp(logit - greatest)
    lean = 0.0  # of exp(logit - greatest) (logit - greatest)
    for first in range(0, columns, BLOCK):
        places = first + tl.arange(0, BLOCK)
        inside = places < columns
        block = tl.load(base + places, mask=inside, other=float("-inf")).to(tl.float32)
        peak = tl.maximum(greatest, tl.max(block, 0))
        shrink = tl.exp(greatest - peak)
        powers = tl.exp(block - peak)
        if ENTROPY:
            lean = shrink * (lean + total * (greatest - peak))
            lean += tl.sum(powers * tl.where(inside, block - peak, 0.0), 0)
        total = total * shrink + tl.sum(powers, 0)
        greatest = peak
    allowed = chosen > lowest
    tl.store(log_probs + row, tl.where(allowed, chosen - greatest - tl.log(total), float("-inf")))
    if ENTROPY:
        tl.store(entropies + row, tl.log(total) - lean / total)
    if RESIDUAL:
        hot = tl.where(allowed, 1.0, 0.0)
        for first in range(0, columns, BLOCK):
            places = first + tl.arange(0, BLOCK)
            inside = places < columns
            block = tl.load(base + places, mask=inside, other=float("-inf")).to(tl.float32)
            residual = tl.exp(block - greatest) / total - tl.where(places == target, hot, 0.0)
            tl.store(base + places, residual.to(logits.dtype.element_ty), mask=inside)


def softmax_rows(
    logits: Tensor,  # [n, V] float32, bfloat16 or float16; overwritten if `residual`
    targets: Tensor,  # [n] int64
    *,
    entropy: bool,
    residual: bool,
) -> tuple[Tensor, Tensor | None]:  # [n] log-probs of the targets, [n] entropies; float32
    """As `reference.softmax_rows`."""
    log_probs = torch.empty(len(logits), device=logits.device)
    entropies = torch.empty_like(log_probs) if entropy else None
    if len(logits):
        block, warps = block_and_warps(logits.shape[1])
        softmax_rows_kernel[(len(logits),)](
            logits,
            targets,
            log_probs,
            log_probs if entropies is None else entropies,
            logits.shape[1],
            logits.stride(0),
            torch.finfo(logits.dtype).min,
            ENTROPY=entropy,
            RESIDUAL=residual,
            BLOCK=block,
            num_warps=warps,
        )
    return log_probs, entropies


def block_and_warps(columns: int) -> tuple[int, int]:
    """At most 32 numbers a thread.

    >>> block_and_warps(32000), block_and_warps(1000)
    ((8192, 8), (1024, 4))
    """
    block = min(triton.next_power_of_2(columns), 8192)
    return block, 8 if block > 2048 else 4
