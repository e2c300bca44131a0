"""Prefill of prompts, images included, whose keys and values are shared by all answers to them.

    prompts = prefill(model, family, collate(...))      # P prompts, with a graph if gradients are enabled
    rows = prompts.expand(index)                        # [B] int64: the prompt of each row
    logits, rows = rows.extend(tokens)                  # [B, K, V]: logits after each of K further tokens

G answers of R tokens to a prompt of P tokens cost P + G·R tokens instead of G·(P + R). Gradients are equal: that of
the prompt is the sum over its answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmrl.tokens.kv_cache import SharedCache, rows_of_cache
from mmrl.understanding.decode_graph import DecodeGraph, worth_recording
from mmrl.understanding.encoded_prompt import CROSS_MASK, EncodedPrompt, SequencePositions, continued, sequence_inputs
from mmrl.understanding.vlm_family import VLMFamily

_ARGUMENTS = {"video_second_per_grid": "second_per_grids"}
"""{input of a forward pass: its name in `get_rope_index`}, of Qwen-Omni."""


@dataclass(frozen=True)
class Prefix:
    """A batch of token sequences that the model has computed, and the logits of the next token."""

    model: Any
    family: VLMFamily
    cache: Any  # transformers' DynamicCache; `extend` lets it grow
    mask: Tensor  # [B, L] int64; 0 = padding
    next_position: Tensor  # [B] int64
    logits: Tensor  # [B, V] of the next token
    cross: Tensor | None = None  # [B, 1, images, tiles]; the images that the last token looks at by cross-attention

    def expand(self, index: Tensor) -> Prefix:
        """Return the rows at `index` [B], with repetitions; this prefix is not changed."""
        cache = rows_of_cache(self.cache, index)
        mask, position, logits = self.mask[index], self.next_position[index], self.logits[index]
        cross = None if self.cross is None else self.cross[index]
        return replace(self, cache=cache, mask=mask, next_position=position, logits=logits, cross=cross)

    def extend(self, tokens: Tensor) -> tuple[Tensor, Prefix]:
        """Compute K further tokens: return their logits [B, K, V] and the longer prefix. Invalidates this one."""
        width = tokens.shape[1]
        mask = torch.cat([self.mask, self.mask.new_ones(tokens.shape)], dim=1)
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=_next_positions(self.family, self.next_position, width),
            past_key_values=self.cache,
            use_cache=True,
            **({} if self.cross is None else {CROSS_MASK: continued(self.cross, width)}),
        )
        after = replace(self, mask=mask, next_position=self.next_position + width, logits=out.logits[:, -1])
        return out.logits, after

    def branch(self, index: Tensor, room: int) -> Branch:
        """Return the rows at `index` [B], with repetitions, for up to `room` more tokens each; no tensor is copied."""
        shared = SharedCache.begin(self.cache, self.mask, index, room)
        return Branch(self.model, self.family, shared, self.next_position[index], self.logits[index])

    def answer_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, K, V] that predict each of K tokens after this prefix. Invalidates it."""
        first = self.logits[:, None]
        return first if tokens.shape[1] == 1 else torch.cat([first, self.extend(tokens[:, :-1])[0]], dim=1)


@dataclass(frozen=True)
class Branch:
    """A batch of rows that continue prompts whose keys and values are stored once. Without gradients."""

    model: Any
    family: VLMFamily
    cache: SharedCache
    next_position: Tensor  # [B] int64
    logits: Tensor  # [B, V]
    step: DecodeGraph | None = field(default=None, repr=False)

    def expand(self, index: Tensor) -> Branch:
        """Return the rows at `index`, in rising order and without repetition. Invalidates this one."""
        position, logits = self.next_position[index], self.logits[index]
        if self.step is not None:
            self.step.release()
        return replace(self, cache=self.cache.keep(index), next_position=position, logits=logits, step=None)

    def extend(self, tokens: Tensor) -> tuple[Tensor, Branch]:
        """Compute one more token in each row: return its logits [B, 1, V] and the longer rows. Invalidates this one."""
        step = self.step
        if step is None and worth_recording(self.model, self.cache):
            step = DecodeGraph(self._compute, self.cache, self.next_position)
            if not step.record(self.model):
                step = None
        logits = step(tokens) if step is not None else self._compute(tokens, self.next_position, self.cache.mask)
        return logits, replace(self, next_position=self.next_position + 1, logits=logits[:, -1], step=step)

    def _compute(self, tokens: Tensor, position: Tensor, mask: Any) -> Tensor:
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=_next_positions(self.family, position, 1),
            past_key_values=self.cache.written,
            use_cache=True,
        )
        logits: Tensor = out.logits
        return logits


def prefill(model: Any, family: VLMFamily, inputs: dict[str, Tensor], prompts: Sequence[EncodedPrompt] = ()) -> Prefix:
    """Compute P prompts, padded on the left; `prompts`, if they are passed, may have recorded positions."""
    positions, next_position = batch_positions(model, family, inputs, prompts)
    empty = DynamicCache(config=model.config)  # some models make none themselves
    out = model(**inputs, position_ids=positions, past_key_values=empty, use_cache=True, logits_to_keep=1)
    cross = continued(inputs[CROSS_MASK], 1) if CROSS_MASK in inputs else None
    return Prefix(model, family, out.past_key_values, inputs["attention_mask"], next_position, out.logits[:, -1], cross)


def forward_uncached(
    model: Any,
    family: VLMFamily,
    inputs: dict[str, Tensor],  # one prompt a row, padded on the left
    tokens: Tensor,  # [B, K]
    prompts: Sequence[EncodedPrompt] = (),  # of the rows, which may have recorded positions
) -> Tensor:  # [B, K, V]; the logits that predict each of the tokens
    """Compute prompts and tokens in one pass without a cache, as gradient checkpointing requires."""
    width = tokens.shape[1]
    full = dict(inputs)
    full["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
    full["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
    for name in sequence_inputs(inputs) - {"input_ids", "attention_mask"}:
        kinds = torch.full_like(tokens, family.answer_kind(name), dtype=inputs[name].dtype)
        full[name] = torch.cat([inputs[name], kinds], dim=1)
    if CROSS_MASK in inputs:
        full[CROSS_MASK] = torch.cat([inputs[CROSS_MASK], continued(inputs[CROSS_MASK], width)], dim=1)
    positions, next_position = batch_positions(model, family, inputs, prompts)
    after = _next_positions(family, next_position, width)
    out = model(**full, position_ids=torch.cat([positions, after], dim=-1), use_cache=False, logits_to_keep=width + 1)
    return out.logits[:, -width - 1 : -1]  # some models ignore `logits_to_keep`


def prompt_positions(
    model: Any, family: VLMFamily, inputs: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:  # [B, L] or [axes, B, L], and [B] the position of the next token
    """Return the positions of the tokens of prompts, equal to those of each prompt alone without padding."""
    mask = inputs["attention_mask"]
    first = family.first_position
    if family.axes == 1:
        return (mask.cumsum(1) - 1 + first).clamp(min=first), mask.sum(1) + first
    # Computed here instead of in the forward pass, which counts padding in a batch without media, and reuses the
    # offsets of the previous batch in `rope_deltas`.
    count = model.model.get_rope_index
    taken = inspect.signature(count).parameters
    rows = 1 if family.batches else len(mask)  # equal prompts, each counted alone
    named = {_ARGUMENTS.get(name, name): value[: len(value) // rows] for name, value in inputs.items()}
    positions = count(**{name: value for name, value in named.items() if name in taken})[0].repeat(1, rows, 1)
    return positions, positions.masked_fill(mask == 0, 0).amax(dim=(0, 2)) + 1


def batch_positions(
    model: Any, family: VLMFamily, inputs: dict[str, Tensor], prompts: Sequence[EncodedPrompt]
) -> tuple[Tensor, Tensor]:
    """Return `prompt_positions` of a collated batch, with the positions that its prompts come with, if any does."""
    recorded = [prompt.positions for prompt in prompts]
    if not any(recorded):
        return prompt_positions(model, family, inputs)
    ids = inputs["input_ids"]
    values = ids.new_zeros((family.axes, *ids.shape) if family.axes > 1 else ids.shape)
    following = ids.new_zeros(len(ids))
    for row, (prompt, own) in enumerate(zip(prompts, recorded, strict=True)):
        if own is None:
            alone = {name: value.to(ids.device) for name, value in prompt.inputs.items() if "pixel" not in name}
            begun, after = prompt_positions(model, family, alone)
            own = SequencePositions(begun[..., 0, :], int(after[0]))
        values[..., row, -prompt.length :] = own.values.to(ids.device)
        following[row] = own.following
    return values, following


def _next_positions(family: VLMFamily, first: Tensor, width: int) -> Tensor:
    """Return the positions of `width` more tokens: [B, width] or [axes, B, width]."""
    positions = first[:, None] + torch.arange(width, device=first.device)
    return positions if family.axes == 1 else positions.expand(family.axes, -1, -1)
