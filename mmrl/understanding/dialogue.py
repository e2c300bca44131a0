"""Dialogues that a model goes on with: it keeps the keys and values of earlier turns, and reads what is new alone.

Between two turns, what is new of a row is its own last turn and the observation after it. Rows of unequal lengths are
padded on the left of every part, so that a cache has padding between turns, which its mask hides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.understanding.continuation import Continuation
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, sequence_inputs
from mmrl.understanding.repeated_media import agree, media_once
from mmrl.understanding.shared_prompt import Prefix, prefill
from mmrl.understanding.vlm import VLM

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dialogue:
    """The rows of a call as a model has read them, before they wrote their last turn."""

    prefix: Prefix
    rows: Tensor  # [B] int64; the row of `prefix` that each row continues

    def read_on(
        self,
        vlm: VLM,
        places: Sequence[int],  # the rows that go on, among the B
        steps: Sequence[Continuation],  # of each: its own last turn, and the observation after it
        whole: Callable[[int], EncodedPrompt],  # from a place in `steps` to all that the row consists of
    ) -> Prefix | None:
        """Return the rows at `places` with their steps; None if they must be read from the beginning.

        A model goes on if that gives the logits of the whole row, which is measured at its first step with images and
        its first without. A divided model reads whole rows: a measurement in one process would wait for the others.
        """
        if vlm.is_divided or any(unit.videos for step in steps for unit in step.media):
            return None
        seeing = next((place for place, step in enumerate(steps) if any(unit.images for unit in step.media)), None)
        key = "dialogue of text" if seeing is None else "dialogue with images"
        if not vlm.measured.get(key, True):
            return None
        index = self.rows[torch.tensor(places, device=self.rows.device)]
        longer = _read(vlm, self.prefix.expand(index), steps)
        if key not in vlm.measured:
            row = whole(seeing or 0)
            alone = prefill(vlm.model, vlm.family, vlm.to_device(collate([row], vlm.padding)), [row])
            vlm.measured[key] = agree(longer.logits[seeing or 0], alone.logits[0])
            if not vlm.measured[key]:
                log.info("%s reads every turn from the beginning: a kept cache changes it", type(vlm.model).__name__)
                return None
        return longer


def _read(vlm: VLM, prefix: Prefix, steps: Sequence[Continuation]) -> Prefix:
    """Return the longer prefix. Invalidates `prefix`, one row of which each step follows."""
    width = max(step.length for step in steps)
    rooms = [(width - step.length, 0) for step in steps]
    media = [unit for step in steps for unit in step.media]
    names = {"input_ids"}.union(*(sequence_inputs(unit.inputs) for unit in media)) - {"attention_mask"}
    tokens = {
        name: torch.stack([
            F.pad(step.sequence(name, vlm.family), room, value=vlm.padding if name == "input_ids" else 0)
            for step, room in zip(steps, rooms, strict=True)
        ])
        for name in names
    }  # fmt: skip
    positions = [
        step.positions(first, vlm.family) for step, first in zip(steps, prefix.next_position.tolist(), strict=True)
    ]
    padded = [F.pad(own.values, room) for own, room in zip(positions, rooms, strict=True)]
    real = torch.arange(width) >= torch.tensor([room for room, _ in rooms])[:, None]
    mask = torch.cat([prefix.mask, real.to(prefix.mask)], dim=1)
    out = prefix.model(
        **vlm.to_device(tokens),
        **media_once(vlm, media),
        attention_mask=mask,
        position_ids=torch.stack(padded, dim=-2).to(vlm.device),
        past_key_values=prefix.cache,
        use_cache=True,
        logits_to_keep=1,
    )
    following = torch.tensor([own.following for own in positions], device=vlm.device)
    return replace(prefix, mask=mask, next_position=following, logits=out.logits[:, -1])
