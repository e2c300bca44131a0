"""A prompt is computed once, pictures and all, and its keys and values serve every answer to it.

    prompts = prefill(model, family, collate(...))      # P prompts, with a graph if gradients are enabled
    rows = prompts.expand(index)                        # [B] which prompt each answer belongs to
    logits = rows.read(tokens)                          # [B, K, V]: what follows each of K further tokens

With G answers of R tokens to a prompt of P that is P + G·R tokens instead of G·(P + R), and gradients are the same:
those of the prompt are the sum over its answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.tokens.kv_cache import SharedCache, rows_of_cache
from mmrl.understanding.vlm import Family


@dataclass(frozen=True)
class Prefix:
    """Texts that a model has read, and what it says comes next."""

    model: Any
    family: Family
    cache: Any  # transformers' DynamicCache; `read` lets it grow
    mask: Tensor  # [B, L] int64; 0 = padding
    following: Tensor  # [B] int64; the position of the next token
    logits: Tensor  # [B, V]; of the next token

    def expand(self, index: Tensor) -> Prefix:
        """Rows by number, repeated as often as they are named; this prefix stays as it is."""
        cache = rows_of_cache(self.cache, index)
        mask, following, logits = self.mask[index], self.following[index], self.logits[index]
        return replace(self, cache=cache, mask=mask, following=following, logits=logits)

    def read(self, tokens: Tensor) -> tuple[Tensor, Prefix]:
        """What follows each of K further tokens, [B, K, V], and the prefix after them. Uses this one's cache up."""
        width = tokens.shape[1]
        mask = torch.cat([self.mask, self.mask.new_ones(tokens.shape)], dim=1)
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=_onwards(self.family, self.following, width),
            past_key_values=self.cache,
            use_cache=True,
        )
        after = replace(self, mask=mask, following=self.following + width, logits=out.logits[:, -1])
        return out.logits, after

    def branch(self, index: Tensor, room: int) -> Branch:
        """Rows by number that go on from these prompts for at most `room` tokens; nothing is copied."""
        shared = SharedCache.begin(self.cache, self.mask, index, room)
        return Branch(self.model, self.family, shared, self.following[index], self.logits[index])

    def read_answers(self, tokens: Tensor) -> Tensor:
        """What the model says of each of K tokens, [B, K, V]. Uses this one's cache up."""
        first = self.logits[:, None]
        return first if tokens.shape[1] == 1 else torch.cat([first, self.read(tokens[:, :-1])[0]], dim=1)


@dataclass(frozen=True)
class Branch:
    """Rows that write on, each from a prompt whose keys and values exist once. Without gradients."""

    model: Any
    family: Family
    cache: SharedCache
    following: Tensor  # [B] int64
    logits: Tensor  # [B, V]

    def expand(self, index: Tensor) -> Branch:
        """Some of the rows, in order, each once. Uses this one up."""
        following, logits = self.following[index], self.logits[index]
        return replace(self, cache=self.cache.keep(index), following=following, logits=logits)

    def read(self, tokens: Tensor) -> tuple[Tensor, Branch]:
        """What follows one more token a row, [B, 1, V], and the rows after it. Uses this one up."""
        out = self.model(
            input_ids=tokens,
            attention_mask=self.cache.mask,
            position_ids=_onwards(self.family, self.following, 1),
            past_key_values=self.cache.written,
            use_cache=True,
        )
        return out.logits, replace(self, following=self.following + 1, logits=out.logits[:, -1])


def prefill(model: Any, family: Family, inputs: dict[str, Tensor]) -> Prefix:
    """Read P prompts, padded on the left."""
    positions, following = positions_of(model, family, inputs)
    out = model(**inputs, position_ids=positions, use_cache=True, logits_to_keep=1)
    return Prefix(model, family, out.past_key_values, inputs["attention_mask"], following, out.logits[:, -1])


def read_whole(
    model: Any,
    family: Family,
    inputs: dict[str, Tensor],  # one prompt a row, padded on the left
    tokens: Tensor,  # [B, K]
) -> Tensor:  # [B, K, V]; what the model says of each of the tokens
    """The same without sharing: the whole text at once, as gradient checkpointing needs it (it allows no cache)."""
    width = tokens.shape[1]
    given = dict(inputs)
    given["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
    given["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
    for name, kind in (("mm_token_type_ids", 0), ("token_type_ids", family.answer_type)):
        if name in inputs:
            given[name] = torch.cat([inputs[name], torch.full_like(tokens, kind, dtype=inputs[name].dtype)], dim=1)
    positions, following = positions_of(model, family, inputs)
    after = _onwards(family, following, width)
    out = model(**given, position_ids=torch.cat([positions, after], dim=-1), use_cache=False, logits_to_keep=width + 1)
    return out.logits[:, :-1]


def positions_of(
    model: Any, family: Family, inputs: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:  # [B, L] or [axes, B, L], and [B] the position of what comes next
    """Where the tokens of prompts stand, as their model counts when it is given one prompt without padding."""
    mask = inputs["attention_mask"]
    first = family.first_position
    if family.axes == 1:
        return (mask.cumsum(1) - 1 + first).clamp(min=first), mask.sum(1) + first
    # Asked for, not left to the forward pass: that counts the padding in a batch of text alone, and then keeps the
    # offsets of the batch before in `rope_deltas`.
    positions, offsets = model.model.get_rope_index(**inputs)
    return positions, mask.sum(1) + offsets.reshape(-1)


def _onwards(family: Family, following: Tensor, width: int) -> Tensor:
    """The positions of `width` more tokens: [B, width] or [axes, B, width]."""
    positions = following[:, None] + torch.arange(width, device=following.device)
    return positions if family.axes == 1 else positions.expand(family.axes, -1, -1)
