"""Keys and values of prompts, selected for the rows of a batch or shared by all rows that continue a prompt."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    DynamicIndexedLayer,
    LinearAttentionCacheLayerMixin,
    get_layer_types_and_kwargs,
)

from mmrl_kernels.integrations.transformers import BranchCache, SharedPromptMask, branching
from mmrl_kernels.ops.shared_prompt.branches import Branches


def rows_of_cache(
    cache: Any,  # transformers' DynamicCache of P rows
    index: Tensor,  # [B] int64
) -> Any:  # a DynamicCache of B rows
    """Return a cache of the rows at `index`, with repetitions and with their graphs; `cache` is not changed."""
    chosen = _same_layers(cache)
    for layer in chosen.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):  # `batch_select_indices` leaves its states as they are
            layer.reorder_cache(index)
        else:
            layer.batch_select_indices(index)
    return chosen


def extends_token_by_token(text_config: Any) -> bool:
    """Return True if a prompt's cache can be continued by one token at a time only, and without gradients.

    A state of linear attention or of a convolution is written in place; sparse attention chooses the keys of one token.
    """
    whole = (LinearAttentionCacheLayerMixin, DynamicIndexedLayer)
    kinds = [DYNAMIC_LAYER_TYPE_MAPPING.get(kind) for kind in get_layer_types_and_kwargs(text_config)[0]]
    return any(kind is None or issubclass(kind, whole) for kind in kinds)


def _same_layers(cache: Any) -> Any:
    """Return a shallow copy on the same tensors: an update of its layers does not change `cache`."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in copied.layers:
        for name, value in vars(layer).items():
            if isinstance(value, dict):  # the states of a layer of linear attention
                setattr(layer, name, dict(value))
    return copied


@dataclass(frozen=True)
class SharedCache:
    """A cache of rows that continue prompts whose keys and values are stored once. Without gradients."""

    prompts: Any  # transformers' DynamicCache, of P prompts
    branches: Branches
    written: BranchCache  # the `past_key_values` of the model; it grows

    @classmethod
    def begin(
        cls,
        prompts: Any,
        mask: Tensor,  # [P, L]; 0 = padding
        index: Tensor,  # [B] int64; the prompt of each row
        room: int,  # the maximum number of tokens after the prompt
    ) -> SharedCache:
        """Return a cache of rows that have no tokens after their prompts yet.

        Tensors are shared, except keys of a wider dtype than their values, which rotary positions leave under
        autocast: they are converted once instead of at every token.
        """
        shared = _same_layers(prompts)
        for layer in shared.layers:
            layer.keys = layer.keys.to(layer.values.dtype)
        hidden = None if bool(mask.all()) else mask == 0
        return cls(shared, Branches(index, hidden), BranchCache(len(shared.layers), room))

    @property
    def mask(self) -> SharedPromptMask:
        """The `attention_mask` for one more token in each row."""
        return branching(self.branches, self.prompts)

    def masked_behind(self, place: Tensor) -> SharedPromptMask:
        """Return the `attention_mask` for a token at `place` [1] int64 of a cache that writes there (`write_at`)."""
        places = torch.arange(self.written.room, device=place.device)
        return branching(self.branches, self.prompts, unwritten=places > place)

    def keep(self, rows: Tensor) -> SharedCache:
        """Return a cache of the rows at `rows`, in rising order and without repetition. Invalidates this cache."""
        self.written.keep(rows)
        return replace(self, branches=self.branches.keep(rows))
