"""Shared-prompt attention in Triton: one kernel forward, and one each for the gradients of queries and of keys.

A tile of queries goes through its prompt's keys and then through its own segment's, with one running softmax: nothing
is merged afterwards. A tile of keys collects from every query that sees it, in a fixed order and without atomics: a
prompt's from all of its completions. `tiles.py` says who sees whom.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmrl_kernels.ops.shared_prompt.layout import SharedPromptLayout
from mmrl_kernels.ops.shared_prompt.tiles import plan, tables

LOG2_E = tl.constexpr(math.log2(math.e))  # exponentials are of base 2, which is what the hardware has


@triton.jit
def _load(base, rows, stride, end, D: tl.constexpr, BLOCK_D: tl.constexpr, FULL: tl.constexpr):
    """[rows, BLOCK_D]: 0 beyond the head's width and, unless all rows are FULL, from row `end` on."""
    columns = tl.arange(0, BLOCK_D)
    at = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    if FULL and D == BLOCK_D:
        return tl.load(at)
    if FULL:
        return tl.load(at, mask=columns[None, :] < D, other=0.0)
    return tl.load(at, mask=(rows < end)[:, None] & (columns < D)[None, :], other=0.0)


@triton.jit
def _store(base, rows, stride, end, x, D: tl.constexpr, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    at = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(at, x.to(base.dtype.element_ty), mask=(rows < end)[:, None] & (columns < D)[None, :])


@triton.jit
def _absorb(
    acc, highest, total, q, rows, starts, key_base, key_stride, value_base, value_stride, at, end, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, KEYS: tl.constexpr, FULL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update the running softmax with the keys from `at` on."""
    keys = at + tl.arange(0, KEYS)
    k = _load(key_base, keys, key_stride, end, D, BLOCK_D, FULL)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if not FULL:
        seen = (keys[None, :] >= starts[:, None]) & (keys[None, :] <= rows[:, None]) & (keys < end)[None, :]
        scores = tl.where(seen, scores, -float("inf"))
    # Never -inf: the first keys that a row meets, its prompt's or its own segment's first, are ones that it sees.
    higher = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(highest - higher)
    v = _load(value_base, keys, value_stride, end, D, BLOCK_D, FULL)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, higher, total * shrink + tl.sum(weights, 1)


@triton.jit
def forward_kernel(
    query_ptr, key_ptr, value_ptr, out_ptr, normaliser_ptr, starts_ptr, tiles_ptr,
    query_row, query_head, key_row, key_head, value_row, value_head, out_row, out_head, tokens, scale,
    SHARE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tile, head = tiles_ptr + tl.program_id(0) * 6, tl.program_id(1).to(tl.int64)
    start, row_end, prompt, prompt_end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    own, edge = tl.load(tile + 4), tl.load(tile + 5)
    keys_of, values_of = key_ptr + head // SHARE * key_head, value_ptr + head // SHARE * value_head
    rows = start + tl.arange(0, QUERIES)
    starts = tl.load(starts_ptr + rows, mask=rows < row_end, other=0)
    q = _load(query_ptr + head * query_head, rows, query_row, row_end, D, BLOCK_D, False)
    acc = tl.zeros([QUERIES, BLOCK_D], tl.float32)
    highest = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)

    of_prompt = (prompt_end - prompt) // KEYS
    for i in range(of_prompt + (edge - own) // KEYS):
        at = tl.where(i < of_prompt, prompt + i * KEYS, own + (i - of_prompt) * KEYS)
        acc, highest, total = _absorb(
            acc, highest, total, q, rows, starts, keys_of, key_row, values_of, value_row, at, at,
            scale * LOG2_E, D, BLOCK_D, KEYS, True, PRECISION,
        )  # fmt: skip
    rest = prompt + of_prompt * KEYS
    left = (rest < prompt_end).to(tl.int32)
    for i in range(left + tl.cdiv(row_end - edge, KEYS)):
        in_prompt = i < left
        at = tl.where(in_prompt, rest, edge + (i - left) * KEYS)
        end = tl.where(in_prompt, prompt_end, row_end)
        acc, highest, total = _absorb(
            acc, highest, total, q, rows, tl.where(in_prompt, 0, starts), keys_of, key_row, values_of, value_row, at,
            end, scale * LOG2_E, D, BLOCK_D, KEYS, False, PRECISION,
        )  # fmt: skip

    tl.store(normaliser_ptr + head * tokens + rows, highest + tl.log2(total), mask=rows < row_end)
    _store(out_ptr + head * out_head, rows, out_row, row_end, acc / total[:, None], D, BLOCK_D)


@triton.jit
def _absorb_of_query(
    acc, q, grad, normaliser, along, rows, starts, key_base, key_stride, value_base, value_stride, at, end, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, KEYS: tl.constexpr, FULL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    keys = at + tl.arange(0, KEYS)
    k = _load(key_base, keys, key_stride, end, D, BLOCK_D, FULL)
    v = _load(value_base, keys, value_stride, end, D, BLOCK_D, FULL)
    weights = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - normaliser[:, None])
    if not FULL:
        seen = (keys[None, :] >= starts[:, None]) & (keys[None, :] <= rows[:, None]) & (keys < end)[None, :]
        weights = tl.where(seen, weights, 0.0)
    of_scores = weights * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - along[:, None])
    return tl.dot(of_scores.to(k.dtype), k, acc, input_precision=PRECISION)


@triton.jit
def of_query_kernel(
    grad_ptr, query_ptr, key_ptr, value_ptr, out_ptr, normaliser_ptr, of_query_ptr, along_ptr, starts_ptr, tiles_ptr,
    grad_row, grad_head, query_row, query_head, key_row, key_head, value_row, value_head, out_row, out_head,
    of_query_row, of_query_head, tokens, scale,
    SHARE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The queries' gradient, and on the way each row's <gradient, out>, which the keys' gradient needs too."""
    tile, head = tiles_ptr + tl.program_id(0) * 6, tl.program_id(1).to(tl.int64)
    start, row_end, prompt, prompt_end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    own, edge = tl.load(tile + 4), tl.load(tile + 5)
    keys_of, values_of = key_ptr + head // SHARE * key_head, value_ptr + head // SHARE * value_head
    rows = start + tl.arange(0, QUERIES)
    inside = rows < row_end
    starts = tl.load(starts_ptr + rows, mask=inside, other=0)
    q = _load(query_ptr + head * query_head, rows, query_row, row_end, D, BLOCK_D, False)
    grad = _load(grad_ptr + head * grad_head, rows, grad_row, row_end, D, BLOCK_D, False)
    out = _load(out_ptr + head * out_head, rows, out_row, row_end, D, BLOCK_D, False)
    normaliser = tl.load(normaliser_ptr + head * tokens + rows, mask=inside, other=0.0)
    along = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(along_ptr + head * tokens + rows, along, mask=inside)
    acc = tl.zeros([QUERIES, BLOCK_D], tl.float32)

    of_prompt = (prompt_end - prompt) // KEYS
    for i in range(of_prompt + (edge - own) // KEYS):
        at = tl.where(i < of_prompt, prompt + i * KEYS, own + (i - of_prompt) * KEYS)
        acc = _absorb_of_query(
            acc, q, grad, normaliser, along, rows, starts, keys_of, key_row, values_of, value_row, at, at,
            scale * LOG2_E, D, BLOCK_D, KEYS, True, PRECISION,
        )  # fmt: skip
    rest = prompt + of_prompt * KEYS
    left = (rest < prompt_end).to(tl.int32)
    for i in range(left + tl.cdiv(row_end - edge, KEYS)):
        in_prompt = i < left
        at = tl.where(in_prompt, rest, edge + (i - left) * KEYS)
        end = tl.where(in_prompt, prompt_end, row_end)
        acc = _absorb_of_query(
            acc, q, grad, normaliser, along, rows, tl.where(in_prompt, 0, starts), keys_of, key_row, values_of,
            value_row, at, end, scale * LOG2_E, D, BLOCK_D, KEYS, False, PRECISION,
        )  # fmt: skip
    _store(of_query_ptr + head * of_query_head, rows, of_query_row, row_end, acc * scale, D, BLOCK_D)


@triton.jit
def _absorb_of_keys(
    of_k, of_v, k, v, keys, starts_ptr, normaliser_base, along_base, query_base, query_stride, grad_base, grad_stride,
    at, end, scale,
    IN_PROMPT, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, FULL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the queries from `at` on to a tile of keys; scores are transposed, [keys, queries]."""
    rows = at + tl.arange(0, QUERIES)
    q = _load(query_base, rows, query_stride, end, D, BLOCK_D, FULL)
    grad = _load(grad_base, rows, grad_stride, end, D, BLOCK_D, FULL)
    # Beyond `end` all of these are 0 and give nothing.
    normaliser = tl.load(normaliser_base + rows, mask=rows < end, other=0.0)
    along = tl.load(along_base + rows, mask=rows < end, other=0.0)
    weights = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale - normaliser[None, :])
    if not FULL:
        starts = tl.where(IN_PROMPT, 0, tl.load(starts_ptr + rows, mask=rows < end, other=0))
        seen = (keys[:, None] >= starts[None, :]) & (keys[:, None] <= rows[None, :])
        weights = tl.where(seen, weights, 0.0)
    of_v = tl.dot(weights.to(grad.dtype), grad, of_v, input_precision=PRECISION)
    of_scores = weights * (tl.dot(v, tl.trans(grad), input_precision=PRECISION) - along[None, :])
    of_k = tl.dot(of_scores.to(q.dtype), q, of_k, input_precision=PRECISION)
    return of_k, of_v


@triton.jit
def of_keys_kernel(
    grad_ptr, query_ptr, key_ptr, value_ptr, normaliser_ptr, along_ptr, of_key_ptr, of_value_ptr, starts_ptr, tiles_ptr,
    grad_row, grad_head, query_row, query_head, key_row, key_head, value_row, value_head, of_key_row, of_key_head,
    of_value_row, of_value_head, tokens, scale,
    SHARE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values, from all queries of all heads that share them."""
    tile, key_of = tiles_ptr + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    start, key_end, free, end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    in_prompt = tl.load(tile + 4) == 1
    keys = start + tl.arange(0, KEYS)
    k = _load(key_ptr + key_of * key_head, keys, key_row, key_end, D, BLOCK_D, False)
    v = _load(value_ptr + key_of * value_head, keys, value_row, key_end, D, BLOCK_D, False)
    of_k = tl.zeros([KEYS, BLOCK_D], tl.float32)
    of_v = tl.zeros([KEYS, BLOCK_D], tl.float32)

    edges = tl.cdiv(free - start, QUERIES)
    whole_from = start + edges * QUERIES
    whole = tl.maximum(end - whole_from, 0) // QUERIES
    rest = whole_from + whole * QUERIES
    left = (rest < end).to(tl.int32)
    for head in range(key_of * SHARE, (key_of + 1) * SHARE):
        queries, grads = query_ptr + head * query_head, grad_ptr + head * grad_head
        normalisers, alongs = normaliser_ptr + head * tokens, along_ptr + head * tokens
        for i in range(edges + left):
            of_k, of_v = _absorb_of_keys(
                of_k, of_v, k, v, keys, starts_ptr, normalisers, alongs, queries, query_row, grads, grad_row,
                tl.where(i < edges, start + i * QUERIES, rest), end, scale * LOG2_E, in_prompt,
                D, BLOCK_D, QUERIES, False, PRECISION,
            )  # fmt: skip
        for i in range(whole):
            of_k, of_v = _absorb_of_keys(
                of_k, of_v, k, v, keys, starts_ptr, normalisers, alongs, queries, query_row, grads, grad_row,
                whole_from + i * QUERIES, end, scale * LOG2_E, in_prompt,
                D, BLOCK_D, QUERIES, True, PRECISION,
            )  # fmt: skip
    _store(of_key_ptr + key_of * of_key_head, keys, of_key_row, key_end, of_k * scale, D, BLOCK_D)
    _store(of_value_ptr + key_of * of_value_head, keys, of_value_row, key_end, of_v, D, BLOCK_D)


def shared_prompt_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: SharedPromptLayout, scale: float
) -> Tensor:
    """As `mmrl_kernels.shared_prompt_attention`, which checks the shapes."""
    found: Tensor = _Fused.apply(query, key, value, layout, scale)
    return found


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SharedPromptLayout, scale: float
    ) -> Tensor:
        query, key, value = (_rows(x) for x in (query, key, value))
        tokens, heads, width = query.shape
        sizes = plan(width, query.element_size())
        known = tables(layout, sizes, query.device)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        normaliser = torch.empty(heads, tokens, dtype=torch.float32, device=query.device)  # log2 of sums of exp2
        with torch.cuda.device_of(query):
            forward_kernel[(len(known.forward), heads)](
                query, key, value, out, normaliser, known.starts, known.forward,
                *_strides(query, key, value, out), tokens, scale, **_constants(query, key),
                QUERIES=sizes.forward.queries, KEYS=sizes.forward.keys,
                num_warps=sizes.forward.warps, num_stages=sizes.forward.stages,
            )  # fmt: skip
        ctx.save_for_backward(query, key, value, out, normaliser)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normaliser = ctx.saved_tensors
        gradient, scale = _rows(gradient), ctx.scale
        tokens, heads, width = query.shape
        sizes = plan(width, query.element_size())
        known = tables(ctx.layout, sizes, query.device)
        of_query, of_key, of_value = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
        along = torch.empty_like(normaliser)
        with torch.cuda.device_of(query):
            of_query_kernel[(len(known.of_query), heads)](
                gradient, query, key, value, out, normaliser, of_query, along, known.starts, known.of_query,
                *_strides(gradient, query, key, value, out, of_query), tokens, scale, **_constants(query, key),
                QUERIES=sizes.of_query.queries, KEYS=sizes.of_query.keys,
                num_warps=sizes.of_query.warps, num_stages=sizes.of_query.stages,
            )  # fmt: skip
            of_keys_kernel[(len(known.of_keys), key.shape[1])](
                gradient, query, key, value, normaliser, along, of_key, of_value, known.starts, known.of_keys,
                *_strides(gradient, query, key, value, of_key, of_value), tokens, scale, **_constants(query, key),
                QUERIES=sizes.of_keys.queries, KEYS=sizes.of_keys.keys,
                num_warps=sizes.of_keys.warps, num_stages=sizes.of_keys.stages,
            )  # fmt: skip
        return of_query, of_key, of_value, None, None


def _rows(x: Tensor) -> Tensor:
    """Any strides of tokens and heads do; the numbers of a head must stand side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [x.stride(axis) for x in tensors for axis in (0, 1)]


def _constants(query: Tensor, key: Tensor) -> dict[str, Any]:
    width = query.shape[-1]
    return {
        "SHARE": query.shape[1] // key.shape[1],
        "D": width,
        "BLOCK_D": max(16, triton.next_power_of_2(width)),
        # As torch's matrix products: float32 means float32 unless the user allows TF32.
        "PRECISION": "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
    }
