"""Prompts and codes through a language model: one by one with a cache, or all at once with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.generation.image_tokens.image_token_model import ImageTokenModel
from mmrl.tokens.kv_cache import SharedCache, rows_of_cache
from mmrl_kernels.integrations.transformers import packed
from mmrl_kernels.ops.shared_prompt import SharedPromptLayout


@dataclass(frozen=True)
class PrefixState:
    """Rows that a model has read, and what it thinks of the next code."""

    image_model: ImageTokenModel
    cache: Any  # transformers' DynamicCache, or a SharedCache; `append_codes` lets it grow
    mask: Tensor  # [B, L] int64; 0 = padding
    following: Tensor  # [B] int64; the position of the next token
    state: Tensor  # [B, H] the last hidden state

    def rows(self, index: Tensor) -> PrefixState:
        """Rows by number, repeated as often as they are named."""
        cache = rows_of_cache(self.cache, index)
        mask, following, state = self.mask[index], self.following[index], self.state[index]
        return replace(self, cache=cache, mask=mask, following=following, state=state)

    def branches(self, index: Tensor, room: int) -> PrefixState:
        """The same for at most `room` more tokens a row; nothing is copied, and no graph is kept."""
        shared = SharedCache.begin(self.cache, self.mask, index, room)
        return replace(self, cache=shared, following=self.following[index], state=self.state[index])

    def append_codes(self, codes: Tensor, written: int) -> PrefixState:
        """After one more code a row, [B], which is the `written`-th of its picture, and the pause after it, if any.
        Uses this one's cache up."""
        embeds = self.image_model.embed_codes(codes[:, None])
        if pause := self.image_model.forced_tokens.get(written):
            fixed = torch.tensor([pause], device=codes.device).expand(len(codes), -1)
            embeds = torch.cat([embeds, self.image_model.embed_text(fixed)], dim=1)
        if isinstance(self.cache, SharedCache):
            return self._branch_on(self.cache, embeds)
        width = embeds.shape[1]
        mask = torch.cat([self.mask, self.mask.new_ones(len(codes), width)], dim=1)
        out = self.image_model.body(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=self.following[:, None] + torch.arange(width, device=codes.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        return replace(self, mask=mask, following=self.following + width, state=out.last_hidden_state[:, -1])

    def _branch_on(self, cache: SharedCache, embeds: Tensor) -> PrefixState:
        """Token by token: branches know no more."""
        now = self
        for token in embeds.split(1, dim=1):
            out = self.image_model.body(
                inputs_embeds=token,
                attention_mask=cache.mask,
                position_ids=now.following[:, None],
                past_key_values=cache.written,
                use_cache=True,
            )
            now = replace(now, following=now.following + 1, state=out.last_hidden_state[:, -1])
        return now


def prefill_prompts(
    image_model: ImageTokenModel, prompts: Sequence[Sequence[int]], device: torch.device
) -> PrefixState:
    """Prefill P prompts, each once."""
    ids, mask = _padded_left(prompts, device)
    out = image_model.body(
        inputs_embeds=image_model.embed_text(ids), attention_mask=mask, position_ids=_positions(mask), use_cache=True
    )
    return PrefixState(image_model, out.past_key_values, mask, mask.sum(1), out.last_hidden_state[:, -1])


def forward_images(
    image_model: ImageTokenModel,
    prompts: Sequence[Sequence[int]],  # B
    codes: Tensor,  # [B, T]
) -> Tensor:  # [B, T, H]; the states that each code was chosen from
    """Whole pictures after their prompts, without a cache."""
    ids, mask = _padded_left(prompts, codes.device)
    embeds, chosen_at = _embed_pictures(image_model, codes)
    mask = torch.cat([mask, mask.new_ones(embeds.shape[:2])], dim=1)
    out = image_model.body(
        inputs_embeds=torch.cat([image_model.embed_text(ids), embeds], dim=1),
        attention_mask=mask,
        position_ids=_positions(mask),
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state
    return states[:, ids.shape[1] - 1 + chosen_at]


def forward_packed(
    image_model: ImageTokenModel,
    prompts: Sequence[tuple[int, ...]],  # B; equal ones are read once
    codes: Tensor,  # [B, T]
) -> Tensor:  # [B, T, H]; the states that each code was chosen from
    """The same, with all pictures in one row behind the prompts that they share, and no padding."""
    embeds, chosen_at = _embed_pictures(image_model, codes)
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, ids in enumerate(prompts):
        rows_of.setdefault(ids, []).append(row)
    width = embeds.shape[1]
    layout = SharedPromptLayout(tuple(map(len, rows_of)), tuple((width,) * len(rows) for rows in rows_of.values()))
    parts = []
    for ids, rows in rows_of.items():
        parts += [image_model.embed_text(torch.tensor([ids], device=codes.device))[0], embeds[rows].flatten(0, 1)]
    begun = [torch.arange(len(ids), device=codes.device) for ids in rows_of]
    out = image_model.body(
        inputs_embeds=torch.cat(parts)[None],
        attention_mask=packed(layout, codes.device),
        position_ids=layout.positions(begun, [len(ids) for ids in rows_of])[None],
        use_cache=False,
    )
    places = torch.empty(codes.shape, dtype=torch.long, device=codes.device)
    for rows, group in zip(rows_of.values(), layout.groups, strict=True):
        for row, span in zip(rows, group.completions, strict=True):
            places[row] = torch.where(chosen_at == 0, group.prompt.end - 1, span.start + chosen_at - 1)
    states: Tensor = out.last_hidden_state[0]
    return states[places]


def _embed_pictures(image_model: ImageTokenModel, codes: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T', H] all codes but the last, with pauses between them; [T] how many of those come before each code."""
    total = codes.shape[1]
    forced_tokens = {after: ids for after, ids in image_model.forced_tokens.items() if after < total}
    if not forced_tokens:
        return image_model.embed_codes(codes[:, :-1]), torch.arange(total, device=codes.device)
    parts, before, start = [], [0] * total, 0
    for after in [*sorted(forced_tokens), total]:
        end = min(after, total - 1)
        parts.append(image_model.embed_codes(codes[:, start:end]))
        if fixed := forced_tokens.get(after):
            ids = torch.tensor([fixed], device=codes.device).expand(len(codes), -1)
            parts.append(image_model.embed_text(ids))
        start = end
    paused = 0
    for number in range(total):
        paused += len(forced_tokens.get(number, ()))
        before[number] = number + paused
    return torch.cat(parts, dim=1), torch.tensor(before, device=codes.device)


def _padded_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """[P, L] ids and mask, both int64. Padding is masked, so any id serves."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + list(each) for each in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=device)
    return ids, mask


def _positions(mask: Tensor) -> Tensor:
    """[B, L]; a row counts from its own first token, however it is padded."""
    return (mask.cumsum(1) - 1).clamp(min=0)
