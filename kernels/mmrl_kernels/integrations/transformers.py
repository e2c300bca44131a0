"""Shared prompts through transformers' own attention interface.

    use_shared_prompts(model)  # once; nothing changes but where attention is looked up
    model(input_ids=pack, position_ids=..., attention_mask=packed(layout), use_cache=False)
    model(input_ids=new, position_ids=..., attention_mask=branching(branches, prompts), past_key_values=own)

What attention needs to know travels as a four-dimensional mask, which transformers' models hand to every layer as it
is, also when activations are computed anew in a backward pass. With any other mask, attention is `sdpa`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from mmrl_kernels.ops.shared_prompt import SharedPromptLayout, shared_prompt_attention
from mmrl_kernels.ops.shared_prompt.branches import Branches, branching_attention
from mmrl_kernels.registry import KernelError

NAME = "mmrl_shared_prompt"


@dataclass(frozen=True)
class _Branching:
    branches: Branches
    prompts: Cache  # of P rows
    unwritten: Tensor | None  # [room] bool; None: the rows' own keys are those that they have written


class SharedPromptMask(Tensor):
    """A mask that says which texts share which prompts. Its one value is NaN: attention that takes it for numbers is
    loudly wrong."""

    plan: SharedPromptLayout | _Branching


def use_shared_prompts(model: Any) -> None:
    """Let a model's language model look its attention up here; towers that only look keep their own.

    Raises:
        KernelError: its layers do not all attend to everything before them.
    """
    text = model.config.get_text_config()
    if reason := unsupported_reason(text):
        raise KernelError(f"{type(model).__name__}: {reason}")
    name = next((name for name in model.config.sub_configs if getattr(model.config, name, None) is text), None)
    model.set_attn_implementation(NAME if name is None else {name: NAME})


def unsupported_reason(text_config: Any) -> str | None:
    """Why a language model cannot share prompts; None: it can."""
    kinds = set(getattr(text_config, "layer_types", None) or ()) - {"full_attention"}
    if not hasattr(text_config, "layer_types") and getattr(text_config, "sliding_window", None):
        kinds = {"sliding_attention"}  # of older classes, which have it in all layers
    if kinds:
        return f"it has layers of {', '.join(sorted(kinds))}, and shared prompts need attention to all that came before"
    if getattr(text_config, "attn_logit_softcapping", None):
        return "it caps the scores of its attention"
    return None


def packed(layout: SharedPromptLayout, device: torch.device) -> SharedPromptMask:
    """The mask of one row that is a pack of this layout."""
    return _mask(layout, device)


def branching(branches: Branches, prompts: Cache, unwritten: Tensor | None = None) -> SharedPromptMask:
    """The mask of rows that go on from a prompt each; `past_key_values` is their `BranchCache`.

    `unwritten` [room] bool is True at the places that a cache of fixed shape has not written yet.
    """
    return _mask(_Branching(branches, prompts, unwritten), branches.prompt_of.device)


def _mask(plan: SharedPromptLayout | _Branching, device: torch.device) -> SharedPromptMask:
    mask = torch.full((1, 1, 1, 1), torch.nan, device=device).as_subclass(SharedPromptMask)
    mask.plan = plan
    return mask


class BranchCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of the tokens that rows wrote after their prompts, with room for a fixed number of them."""

    def __init__(self, layers: int, room: int) -> None:
        super().__init__(layers=[_RoomyLayer(room) for _ in range(layers)])
        self.room = room

    def write_at(self, place: Tensor | None) -> None:
        """Write the next token at `place` [1] int64, and return the keys and values of all places: shapes stay fixed.

        The owner of `place` moves it, masks the places behind it, and says how many tokens were written with `count`.
        None: write behind the last token again, and return what was written.
        """
        for layer in self.layers:
            layer.place = place

    def count(self, written: int) -> None:
        """Say how many tokens every row has written."""
        for layer in self.layers:
            layer.used = written

    def keep(self, rows: Tensor) -> None:
        """Give up all rows but these."""
        for layer in self.layers:
            layer.keep(rows)


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Written in place: nothing is copied when a token is added. Keys are kept in the precision of values: under
    autocast rotary positions leave them in float32, and all of them would be narrowed again at every token."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room, self.used = room, 0
        self.place: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = value_states.dtype, value_states.device
        rows, heads, _, width = key_states.shape
        # Zeros, not `new_empty`: a masked value has weight 0, and 0 times what memory holds may be NaN.
        self.keys = value_states.new_zeros(rows, heads, self._room, width)
        self.values = value_states.new_zeros(rows, heads, self._room, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.place is not None:
            self.keys.index_copy_(2, self.place, key_states.to(self.dtype))
            self.values.index_copy_(2, self.place, value_states)
            return self.keys, self.values
        end = self.used + key_states.shape[2]
        if end > self._room:
            raise KernelError(f"a BranchCache with room for {self._room} tokens was given {end}")
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.used

    def keep(self, rows: Tensor) -> None:
        """Some rows alone."""
        if self.is_initialized:
            self.keys, self.values = self.keys[rows], self.values[rows]


def _attention(
    module: nn.Module,
    query: Tensor,  # [B, H, L, D]
    key: Tensor,  # [B, K, L, D]
    value: Tensor,  # [B, K, L, D]
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    if not isinstance(attention_mask, SharedPromptMask):
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
        return out, None
    if dropout or rest.get("softcap") is not None or rest.get("s_aux") is not None:
        raise KernelError("shared prompts know no dropout, no capped scores and no attention sinks")
    now = getattr(attention_mask, "plan", None)
    if now is None:
        raise KernelError(f"{type(module).__name__}: its model changed the mask that says which texts share a prompt")
    query, key, value = _in_one_precision(query, key, value)
    if isinstance(now, SharedPromptLayout):
        if len(query) != 1:
            raise KernelError(f"a pack is one row, and the model was given {len(query)}")
        flat = [x[0].transpose(0, 1) for x in (query, key, value)]
        return shared_prompt_attention(flat[0], flat[1], flat[2], now, scaling)[None], None
    if query.shape[2] != 1:
        raise KernelError(f"branches go on token by token, and {query.shape[2]} came at once")
    layer = now.prompts.layers[module.layer_idx]
    far = (layer.keys.to(query.dtype), layer.values.to(query.dtype))
    out = branching_attention(query[:, :, 0], *far, key, value, now.branches, scaling, now.unwritten)
    return out[:, None], None


def _in_one_precision(*each: Tensor) -> list[Tensor]:
    """As autocast does for torch's own attention: rotary positions leave queries and keys in float32."""
    kind = each[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return list(each) if dtype is None else [x.to(dtype) for x in each]


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
