"""Forward passes of a token image generator that draws a whole scale at once: next-scale prediction (arXiv:2404.02905).

The codes of a scale are independent of one another, given the prompt and all coarser scales. Attention is therefore
causal between scales, and full within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.generation.image_tokens.forward import PrefixState, pad_left, positions_of
from mmrl.generation.image_tokens.image_token_model import ImageTokenModel


@dataclass(frozen=True)
class ScaleState:
    """The state after a prompt and the inputs of some scales; the codes of the last scale are drawn from it."""

    prefix: PrefixState  # with the inputs of these scales
    codes: Tensor  # [B, K] the codes of the scales before the last
    scale: int  # the number of the last scale

    @property
    def states(self) -> Tensor:
        """The hidden states [B, n, H] that the n codes of the last scale are drawn from."""
        return self.prefix.states

    def append_codes(self, codes: Tensor) -> ScaleState:
        """Return the state after the codes [B, n] of the last scale.

        The cache is extended in place, so the old state must not be used again.
        """
        return _read_scale(self.prefix, torch.cat([self.codes, codes], dim=1), self.scale + 1)


def begin_scales(prefix: PrefixState) -> ScaleState:
    """Return the state that the coarsest scale is drawn from."""
    return _read_scale(prefix, prefix.mask.new_zeros(len(prefix.mask), 0), 0)


def _read_scale(prefix: PrefixState, codes: Tensor, scale: int) -> ScaleState:
    """Run the inputs of a scale after `codes` [B, K], those of all scales before it."""
    embeds = prefix.image_model.embed_scale(codes, scale)
    width = embeds.shape[1]
    mask = torch.cat([prefix.mask, prefix.mask.new_ones(len(codes), width)], dim=1)
    out = prefix.image_model.body(
        inputs_embeds=embeds,
        attention_mask=mask.bool()[:, None, None].expand(-1, 1, width, -1),
        position_ids=prefix.next_position[:, None] + torch.arange(width, device=codes.device),
        past_key_values=prefix.cache,
        use_cache=True,
    )
    grown = replace(prefix, mask=mask, next_position=prefix.next_position + width, states=out.last_hidden_state)
    return ScaleState(grown, codes, scale)


def forward_scales(
    image_model: ImageTokenModel,
    prompts: Sequence[Sequence[int]],  # B
    codes: Tensor,  # [B, T]
) -> Tensor:  # [B, T, H]; the hidden state that each code is predicted from
    """Run whole images after their prompts, without a cache."""
    ids, mask = pad_left(prompts, codes.device)
    inputs, before = [], 0
    for scale, (rows, columns) in enumerate(image_model.scales):
        inputs.append(image_model.embed_scale(codes[:, :before], scale))
        before += rows * columns
    mask = torch.cat([mask, mask.new_ones(codes.shape)], dim=1)
    out = image_model.body(
        inputs_embeds=torch.cat([image_model.embed_text(ids), *inputs], dim=1),
        attention_mask=_scale_mask(image_model, mask),
        position_ids=positions_of(mask),
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state
    return states[:, ids.shape[1] :]


def _scale_mask(image_model: ImageTokenModel, mask: Tensor) -> Tensor:
    """Return [B, 1, L + T, L + T], true where a token is read: the earlier text, all coarser scales and its own."""
    sizes = torch.tensor([rows * columns for rows, columns in image_model.scales], device=mask.device)
    text = mask.shape[1] - image_model.codes_per_image
    scales = torch.arange(len(sizes), device=mask.device).repeat_interleave(sizes)
    turn = torch.cat([torch.arange(text, device=mask.device), text + scales])
    read = (turn[:, None] >= turn) & mask.bool()[:, None]
    itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)  # padding reads itself, lest it be NaN
    return (read | itself)[:, None]
