"""Attention over sequences of different lengths, packed one behind another without padding.

    cu = torch.tensor([0, 5, 12], dtype=torch.int32)  # two sequences: 5 and 7 tokens
    out = varlen_attention(q, k, v, cu, cu, causal=True)  # q [12, heads, d], k and v [12, kv_heads, d]

A thin wrapper: on a GPU it calls torch's own `torch.nn.attention.varlen`, elsewhere it goes through the sequences one
by one. `MMRL_KERNELS=reference` asks for the latter everywhere; other values leave the choice to what serves.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from mmrl_kernels.ops.varlen.reference import attention_by_sequence
from mmrl_kernels.registry import KernelError, wanted

__all__ = ["varlen_attention", "why_not_flash"]

_log = logging.getLogger(__name__)


def varlen_attention(
    q: Tensor,  # [T_q, heads, d]
    k: Tensor,  # [T_k, kv_heads, d]; kv_heads divides heads
    v: Tensor,  # as k
    cu_seqlens_q: Tensor,  # [S + 1] int32: where each sequence begins, from 0 to T_q
    cu_seqlens_k: Tensor,  # [S + 1] int32, from 0 to T_k
    causal: bool = False,
    scale: float | None = None,  # unset: 1 / sqrt(d)
) -> Tensor:  # as q
    """softmax(scale q kᵀ) v within each sequence.

    Causal attention is aligned at the *end*, as flash attention has it: the last query of a sequence sees all of its
    keys, and a query before all keys sees none and gets 0. (`scaled_dot_product_attention(is_causal=True)` aligns at
    the beginning, which differs where a sequence has more keys than queries.) A sequence may be empty.

    Raises:
        KernelError: shapes, dtypes or offsets do not fit.
    """
    _check(q, k, v, cu_seqlens_q, cu_seqlens_k)
    why_not = "asked for by name" if wanted() == "reference" else why_not_flash(q)
    _tell("reference" if why_not else "torch.nn.attention.varlen", why_not or "first choice")
    if why_not is not None:
        return attention_by_sequence(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale)
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q, k, v, cu_seqlens_q.int(), cu_seqlens_k.int(), _longest(cu_seqlens_q), _longest(cu_seqlens_k), scale=scale,
        window_size=(-1, 0) if causal else (-1, -1), enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def why_not_flash(q: Tensor) -> str | None:
    """None, or why torch's variable-length kernels cannot serve queries like these."""
    if find_spec("torch.nn.attention.varlen") is None:
        return f"torch {torch.__version__} has no torch.nn.attention.varlen"
    if q.device.type != "cuda":
        return f"q is on {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"q is {q.dtype}, and flash attention takes float16 and bfloat16"
    if q.shape[-1] % 8 or q.shape[-1] > 256:
        return f"heads of {q.shape[-1]} numbers: flash attention takes multiples of 8 up to 256"
    if torch.cuda.get_device_capability(q.device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    return None


def _longest(cu_seqlens: Tensor) -> int:
    return int(cu_seqlens.diff().max())


def _check(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    if q.ndim != 3 or k.ndim != 3 or k.shape != v.shape or k.shape[2] != q.shape[2] or q.shape[1] % k.shape[1]:
        raise KernelError("expected q [T_q, heads, d] and k, v [T_k, kv_heads, d] with kv_heads dividing heads, got "
                          f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}")  # fmt: skip
    if not q.dtype == k.dtype == v.dtype:
        raise KernelError(f"q, k and v: expected one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if cu_seqlens_q.shape != cu_seqlens_k.shape or cu_seqlens_q.ndim != 1 or len(cu_seqlens_q) < 2:
        raise KernelError("cu_seqlens: expected [S + 1] for both queries and keys, got "
                          f"{list(cu_seqlens_q.shape)} and {list(cu_seqlens_k.shape)}")  # fmt: skip
    for name, cu_seqlens, total in (("cu_seqlens_q", cu_seqlens_q, len(q)), ("cu_seqlens_k", cu_seqlens_k, len(k))):
        if cu_seqlens.device.type == "cpu":  # reading it on a GPU would wait for the GPU
            ends = cu_seqlens.tolist()
            if ends[0] != 0 or ends[-1] != total or sorted(ends) != ends:
                raise KernelError(f"{name}: expected offsets that rise from 0 to {total}, got {ends}")


@cache
def _tell(chosen: str, reason: str) -> None:
    _log.info("varlen: %s (%s)", chosen, reason)
