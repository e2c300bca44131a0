"""Keys and values of texts that a model has read, for as many rows as go on from each."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mmrl_kernels.doors.transformers import BranchCache, SharedPromptMask, branching
from mmrl_kernels.ops.shared_prompt.branches import Branches


def rows_of_cache(
    cache: Any,  # transformers' DynamicCache of P rows
    index: Tensor,  # [B] int64
) -> Any:  # a DynamicCache of B rows
    """Rows by number, repeated as often as they are named, with their graphs; the cache itself stays as it is."""
    chosen = _same_layers(cache)
    chosen.batch_select_indices(index)
    return chosen


def _same_layers(cache: Any) -> Any:
    """A cache of its own on the same tensors: what is put into its layers does not change the other."""
    own = copy.copy(cache)
    own.layers = [copy.copy(layer) for layer in cache.layers]
    return own


@dataclass(frozen=True)
class SharedCache:
    """Rows that write on, each from a prompt whose keys and values exist once. Without gradients."""

    prompts: Any  # transformers' DynamicCache, of P prompts
    branches: Branches
    written: BranchCache  # `past_key_values`; it grows

    @classmethod
    def begin(
        cls,
        prompts: Any,
        mask: Tensor,  # [P, L]; 0 = padding
        index: Tensor,  # [B] int64; the prompt of each row
        room: int,  # the most tokens that a row will write
    ) -> SharedCache:
        """Nothing is copied, but for keys that are wider than their values, as rotary positions leave them under
        autocast: attention would narrow them at every token."""
        held = _same_layers(prompts)
        for layer in held.layers:
            layer.keys = layer.keys.to(layer.values.dtype)
        hidden = None if bool(mask.all()) else mask == 0
        return cls(held, Branches(index, hidden), BranchCache(len(held.layers), room))

    @property
    def mask(self) -> SharedPromptMask:
        """The `attention_mask` of one more token a row."""
        return branching(self.branches, self.prompts)

    def keep(self, rows: Tensor) -> SharedCache:
        """Some of the rows, in order, each once. Uses this one up."""
        self.written.keep(rows)
        return replace(self, branches=self.branches.keep(rows))
