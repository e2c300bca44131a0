"""Forward passes of a token image generator: code by code with a KV cache, or whole images in one pass.

`mmrl.generation.image_tokens.scale_forward` has those of models that draw a whole scale at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mmrl.generation.image_tokens.image_token_model import ImageTokenModel
from mmrl.tokens.kv_cache import SharedCache, rows_of_cache
from mmrl_kernels.integrations.transformers import packed
from mmrl_kernels.ops.shared_prompt import SharedPromptLayout


@dataclass(frozen=True)
class PrefixState:
    """The KV cache and the last hidden state of each row after its prefix."""

    image_model: ImageTokenModel
    cache: Any  # transformers' DynamicCache, or a SharedCache; `append_codes` lets it grow
    mask: Tensor  # [B, L] int64; 0 = padding
    next_position: Tensor  # [B] int64
    states: Tensor  # [B, n, H] the hidden states that the next n codes are drawn from; n is 1 for codes one by one
    written: int = 0  # the number of codes of the image so far

    def select(self, index: Tensor) -> PrefixState:
        """Return these rows; a row may occur several times."""
        cache = rows_of_cache(self.cache, index)
        mask, next_position, states = self.mask[index], self.next_position[index], self.states[index]
        return replace(self, cache=cache, mask=mask, next_position=next_position, states=states)

    def share_prefix(self, index: Tensor, room: int) -> PrefixState:
        """Return these rows with a shared prefix cache and room for `room` tokens each; no copies, no graph."""
        shared = SharedCache.begin(self.cache, self.mask, index, room)
        return replace(self, cache=shared, next_position=self.next_position[index], states=self.states[index])

    def append_codes(self, codes: Tensor) -> PrefixState:
        """Return the state after one more code per row, [B, 1], and the forced tokens after it.

        The cache is extended in place, so the old state must not be used again.
        """
        embeds, written = self.image_model.embed_codes(codes), self.written + 1
        if forced := self.image_model.forced_tokens.get(written):
            fixed = torch.tensor([forced], device=codes.device).expand(len(codes), -1)
            embeds = torch.cat([embeds, self.image_model.embed_text(fixed)], dim=1)
        if isinstance(self.cache, SharedCache):
            return replace(self._append_to_shared(self.cache, embeds), written=written)
        width = embeds.shape[1]
        mask = torch.cat([self.mask, self.mask.new_ones(len(codes), width)], dim=1)
        out = self.image_model.body(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=self.next_position[:, None] + torch.arange(width, device=codes.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        states, next_position = out.last_hidden_state[:, -1:], self.next_position + width
        return replace(self, mask=mask, next_position=next_position, states=states, written=written)

    def _append_to_shared(self, cache: SharedCache, embeds: Tensor) -> PrefixState:
        """Append embeddings [B, K, H] token by token, the only way that a shared cache supports."""
        now = self
        for token in embeds.split(1, dim=1):
            out = self.image_model.body(
                inputs_embeds=token,
                attention_mask=cache.mask,
                position_ids=now.next_position[:, None],
                past_key_values=cache.written,
                use_cache=True,
            )
            now = replace(now, next_position=now.next_position + 1, states=out.last_hidden_state[:, -1:])
        return now


def prefill_prompts(
    image_model: ImageTokenModel, prompts: Sequence[Sequence[int]], device: torch.device
) -> PrefixState:
    """Return the state after P prompts."""
    ids, mask = pad_left(prompts, device)
    out = image_model.body(
        inputs_embeds=image_model.embed_text(ids), attention_mask=mask, position_ids=positions_of(mask), use_cache=True
    )
    return PrefixState(image_model, out.past_key_values, mask, mask.sum(1), out.last_hidden_state[:, -1:])


def forward_images(
    image_model: ImageTokenModel,
    prompts: Sequence[Sequence[int]],  # B
    codes: Tensor,  # [B, T]
) -> Tensor:  # [B, T, H]; the hidden state that each code is predicted from
    """Run whole images after their prompts, without a cache."""
    ids, mask = pad_left(prompts, codes.device)
    embeds, num_before = _embed_images(image_model, codes)
    mask = torch.cat([mask, mask.new_ones(embeds.shape[:2])], dim=1)
    out = image_model.body(
        inputs_embeds=torch.cat([image_model.embed_text(ids), embeds], dim=1),
        attention_mask=mask,
        position_ids=positions_of(mask),
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state
    return states[:, ids.shape[1] - 1 + num_before]


def forward_packed(
    image_model: ImageTokenModel,
    prompts: Sequence[tuple[int, ...]],  # B; equal ones are computed once
    codes: Tensor,  # [B, T]
) -> Tensor:  # [B, T, H]; the hidden state that each code is predicted from
    """Run whole images packed into one row after their shared prompts, without padding; results as `forward_images`."""
    embeds, num_before = _embed_images(image_model, codes)
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
            places[row] = torch.where(num_before == 0, group.prompt.end - 1, span.start + num_before - 1)
    states: Tensor = out.last_hidden_state[0]
    return states[places]


def _embed_images(image_model: ImageTokenModel, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embeddings [B, T', H] of codes and forced tokens without the last code, and [T], the number of those
    before each code."""
    total = codes.shape[1]
    forced_tokens = {after: ids for after, ids in image_model.forced_tokens.items() if after < total}
    if not forced_tokens:
        return image_model.embed_codes(codes[:, :-1]), torch.arange(total, device=codes.device)
    parts, start = [], 0
    for after in [*sorted(forced_tokens), total]:
        end = min(after, total - 1)
        parts.append(image_model.embed_codes(codes[:, start:end]))
        if fixed := forced_tokens.get(after):
            ids = torch.tensor([fixed], device=codes.device).expand(len(codes), -1)
            parts.append(image_model.embed_text(ids))
        start = end
    num_forced = accumulate(len(forced_tokens.get(number, ())) for number in range(total))
    before = [number + count for number, count in enumerate(num_forced)]
    return torch.cat(parts, dim=1), torch.tensor(before, device=codes.device)


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and mask, both [P, L] int64. The padding id is 0; it is masked."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + list(each) for each in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=device)
    return ids, mask


def positions_of(mask: Tensor) -> Tensor:
    """Return positions [B, L] that count from the first token of each row that is not padding."""
    return (mask.cumsum(1) - 1).clamp(min=0)
