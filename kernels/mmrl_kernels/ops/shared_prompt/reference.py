"""Shared-prompt attention in plain torch: a cascade of two parts.

Every completion attends to its prompt, all completions of a group in one call without a mask, and causally to itself,
completions of like length side by side. The two are merged by their log-sum-exp; prompts have the second part alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mmrl_kernels.ops.shared_prompt.attend import attend, attend_backward, merge
from mmrl_kernels.ops.shared_prompt.layout import SharedPromptLayout, Span

WASTE = 1.25
"""Segments are computed side by side while the longest is at most this many times as long as the shortest."""


def shared_prompt_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: SharedPromptLayout, scale: float
) -> Tensor:
    """As `mmrl_kernels.shared_prompt_attention`, which checks the shapes."""
    found: Tensor = _Cascade.apply(query, key, value, layout, scale)  # type: ignore[no-untyped-call]
    return found


class _Cascade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: SharedPromptLayout, scale: float
    ) -> Tensor:
        heads, kv_heads = query.shape[1], key.shape[1]
        out = torch.empty_like(query)
        wide = torch.promote_types(query.dtype, torch.float32)
        normaliser = torch.empty(query.shape[:2], dtype=wide, device=query.device)
        for rows in _batches(layout, query.device):
            mine, its = attend(
                rows.gather(query), rows.gather(key, heads), rows.gather(value, heads), causal=True, scale=scale
            )
            rows.scatter(out, mine)
            rows.scatter(normaliser, its)
        for prompt, answers in _crossings(layout):
            mine, its = attend(
                _folded(query[answers], kv_heads), _keys(key[prompt]), _keys(value[prompt]), causal=False, scale=scale
            )
            out[answers], normaliser[answers] = merge(
                out[answers], normaliser[answers], _unfolded(mine, heads), _unfolded(its, heads)
            )
        ctx.save_for_backward(query, key, value, out, normaliser)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normaliser = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        heads, kv_heads = query.shape[1], key.shape[1]
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for rows in _batches(layout, query.device):
            found = attend_backward(
                rows.gather(gradient, fill=0.0),
                rows.gather(query),
                rows.gather(key, heads),
                rows.gather(value, heads),
                rows.gather(out),
                rows.gather(normaliser),
                causal=True,
                scale=scale,
            )
            rows.scatter(of_query, found[0])
            rows.scatter(of_key, _summed(found[1], kv_heads))
            rows.scatter(of_value, _summed(found[2], kv_heads))
        for prompt, answers in _crossings(layout):
            found = attend_backward(
                _folded(gradient[answers], kv_heads),
                _folded(query[answers], kv_heads),
                _keys(key[prompt]),
                _keys(value[prompt]),
                _folded(out[answers], kv_heads),
                _folded(normaliser[answers], kv_heads),
                causal=False,
                scale=scale,
            )
            of_query[answers] += _unfolded(found[0], heads)
            of_key[prompt] += found[1][0].transpose(0, 1)
            of_value[prompt] += found[2][0].transpose(0, 1)
        return of_query, of_key, of_value, None, None


@dataclass(frozen=True)
class _Rows:
    """Segments of like length side by side."""

    index: Tensor  # [C, L] int64; the pack's token at each place, 0 beyond a segment's end
    inside: Tensor | None  # [C, L] bool; None: all places are
    run: slice | None  # where they stand if they stand side by side in the pack, so that nothing need be copied

    def gather(self, x: Tensor, heads: int | None = None, fill: float | None = None) -> Tensor:
        """[N, H, ...] to [C, heads, L, ...]; key heads are repeated to `heads`, and `fill` stands beyond the ends."""
        flat = x.index_select(0, self.index.flatten()) if self.run is None else x[self.run]
        taken: Tensor = flat.unflatten(0, self.index.shape)  # type: ignore[no-untyped-call]
        if fill is not None and self.inside is not None:
            taken = taken.masked_fill(~self.inside.view(*self.index.shape, *[1] * (x.ndim - 1)), fill)
        taken = taken.transpose(1, 2)
        return taken if heads in (None, x.shape[1]) else taken.repeat_interleave(heads // x.shape[1], dim=1)

    def scatter(self, into: Tensor, x: Tensor) -> None:
        """[C, H, L, ...] to the places that they came from."""
        if self.run is not None:
            into[self.run].view(*self.index.shape, *into.shape[1:]).copy_(x.transpose(1, 2))
            return
        flat = x.transpose(1, 2).flatten(0, 1).to(into.dtype)
        if self.inside is None:
            into.index_copy_(0, self.index.flatten(), flat)
        else:
            inside = self.inside.flatten()
            into.index_copy_(0, self.index.flatten()[inside], flat[inside])


@lru_cache(maxsize=16)  # every layer of a forward and a backward pass asks for the same
def _batches(layout: SharedPromptLayout, device: torch.device) -> tuple[_Rows, ...]:
    found: list[list[Span]] = []
    for span in sorted(layout.segments, key=lambda span: (len(span), span.start)):
        if found and len(span) <= WASTE * len(found[-1][0]):
            found[-1].append(span)
        else:
            found.append([span])
    return tuple(_rows(spans, device) for spans in found)


def _rows(spans: list[Span], device: torch.device) -> _Rows:
    starts = torch.tensor([span.start for span in spans], device=device)
    lengths = torch.tensor([len(span) for span in spans], device=device)
    places = torch.arange(int(lengths.max()), device=device)
    inside = places < lengths[:, None]
    index = torch.where(inside, starts[:, None] + places, 0)
    if not inside.all():
        return _Rows(index, inside, None)
    beside = all(before.end == after.start for before, after in pairwise(spans))
    return _Rows(index, None, slice(spans[0].start, spans[-1].end) if beside else None)


def _crossings(layout: SharedPromptLayout) -> Iterator[tuple[slice, slice]]:
    """Yield each group's slice of prompt tokens and slice of completion tokens."""
    for group in layout.groups:
        if group.completions:
            yield slice(group.prompt.start, group.prompt.end), slice(group.answers.start, group.answers.end)


def _keys(x: Tensor) -> Tensor:  # [P, Hkv, D] -> [1, Hkv, P, D]
    return x.transpose(0, 1)[None]


def _folded(x: Tensor, kv_heads: int) -> Tensor:  # [R, H, ...] -> [1, Hkv, (H / Hkv) R, ...]
    """Query heads that share a key head become more queries of it."""
    split: Tensor = x.unflatten(1, (kv_heads, -1))  # type: ignore[no-untyped-call]
    return split.movedim(0, 2).flatten(1, 2)[None]


def _unfolded(x: Tensor, heads: int) -> Tensor:  # [1, Hkv, (H / Hkv) R, ...] -> [R, H, ...]
    each = heads // x.shape[1]
    split: Tensor = x[0].unflatten(1, (each, -1))  # type: ignore[no-untyped-call]
    return split.movedim(2, 0).flatten(1, 2)


def _summed(x: Tensor, kv_heads: int) -> Tensor:  # [C, H, L, D] -> [C, Hkv, L, D]
    if x.shape[1] == kv_heads:
        return x
    split: Tensor = x.unflatten(1, (kv_heads, -1))  # type: ignore[no-untyped-call]
    return split.sum(2)
