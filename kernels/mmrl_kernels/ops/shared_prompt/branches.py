"""Attention of tokens that are being written: rows branch off from prompts whose keys and values exist once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mmrl_kernels.ops.shared_prompt.attend import attend, merge
from mmrl_kernels.registry import KernelError


@dataclass(frozen=True)
class Branches:
    """The prompt that each row continues, and the padding among a prompt's keys."""

    prompt_of: Tensor  # [B] int64
    hidden: Tensor | None  # [P, S] bool; True = padding; None: there is none

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Rows side by side under their prompt: [P, n] which row stands at each place, and [B] where each row stands.

        Places beyond a prompt's rows hold row 0 again; their results are never read.
        """
        prompts = int(self.prompt_of.max()) + 1 if self.hidden is None else len(self.hidden)
        counts = torch.bincount(self.prompt_of, minlength=prompts)
        most = int(counts.max())
        order = self.prompt_of.argsort(stable=True)
        sorted_prompts = self.prompt_of[order]
        own = torch.empty_like(order)
        behind = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[sorted_prompts]
        own[order] = sorted_prompts * most + behind
        rows = torch.zeros(prompts * most, dtype=torch.long, device=own.device)
        rows[own] = torch.arange(len(own), device=own.device)
        return rows.view(prompts, most), own

    def keep(self, rows: Tensor) -> Branches:
        """Some of the rows, in order."""
        return Branches(self.prompt_of[rows], self.hidden)


def branching_attention(
    query: Tensor,  # [B, H, D]; of one token a row, the last that it has written
    prompt_key: Tensor,  # [P, K, S, D]
    prompt_value: Tensor,  # [P, K, S, D]
    own_key: Tensor,  # [B, K, T, D]; of what each row has written itself, this token included
    own_value: Tensor,  # [B, K, T, D]
    branches: Branches,
    scale: float | None = None,  # None: 1 / sqrt(D)
    own_hidden: Tensor | None = None,  # [T] bool; True masks a key that no row has written yet
) -> Tensor:  # [B, H, D]
    """Attention of the newest token of every row to its prompt and to what the row wrote; without gradients.

    A prompt's keys and values are read once for all of its rows, and never copied.

    Raises:
        KernelError: the shapes do not fit together.
    """
    rows, heads, width = query.shape
    kv_heads = prompt_key.shape[1]
    if own_key.shape[:2] != (rows, kv_heads) or len(branches.prompt_of) != rows or heads % kv_heads:
        raise KernelError(
            f"branching_attention: query {list(query.shape)}, prompts' keys {list(prompt_key.shape)} and rows' own "
            f"keys {list(own_key.shape)} do not fit {len(branches.prompt_of)} branches"
        )
    scale = 1 / math.sqrt(width) if scale is None else scale
    grouped = query.unflatten(1, (kv_heads, -1))  # type: ignore[no-untyped-call]  # [B, K, H / K, D]
    unwritten = None if own_hidden is None else own_hidden[None, None, None]
    own, its = attend(grouped, own_key, own_value, causal=False, scale=scale, hidden=unwritten)
    index, places = branches.places
    prompts = len(index)  # fewer than there are where the last ones have no rows left
    prompt_key, prompt_value = prompt_key[:prompts], prompt_value[:prompts]
    side_by_side = grouped[index].transpose(1, 2).flatten(2, 3)  # [P, K, n * H / K, D]
    hidden = None if branches.hidden is None else branches.hidden[:, None, None]
    far, far_its = attend(side_by_side, prompt_key, prompt_value, causal=False, scale=scale, hidden=hidden)
    far = far.unflatten(2, (index.shape[1], -1)).transpose(1, 2).reshape(prompts * index.shape[1], *grouped.shape[1:])  # type: ignore[no-untyped-call]
    far_its = far_its.unflatten(2, (index.shape[1], -1)).transpose(1, 2).reshape(-1, *grouped.shape[1:-1])  # type: ignore[no-untyped-call]
    return merge(far[places], far_its[places], own, its)[0].flatten(1, 2)
