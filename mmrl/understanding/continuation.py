"""Continuations of prompts in a trajectory: tokens that the policy wrote, and observations between them.

    prompt | own tokens, turn 0 | observation | own tokens, turn 1 | observation | own tokens, turn 2

Decisions are own tokens alone. The ids of an observation are made once, by the model's processor, and those of own
tokens are never made again from their text. Rotary positions are those of a model that reads one part after another: a
part begins at the position after the part before it. They are given to the model, because its own rules count from the
beginning of a sequence, and place what follows a video of Qwen2.5-VL otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from mmrl.errors import DataError
from mmrl.understanding.encoded_prompt import (
    CROSS_MASK,
    EncodedPrompt,
    SequencePositions,
    WirePrompt,
    is_of_videos,
    media_inputs,
    pixel_inputs,
    sequence_inputs,
)
from mmrl.understanding.shared_prompt import prompt_positions
from mmrl.understanding.vlm_family import VLMFamily


@dataclass(frozen=True)
class EncodedObservation:
    """An observation as the chat template has it, from the end of one turn of the policy to the begin of the next."""

    encoded: EncodedPrompt
    positions: SequencePositions  # as if its first token were at 0

    @property
    def length(self) -> int:
        """The number of its tokens, image tokens included."""
        return self.encoded.length


@dataclass(frozen=True)
class Observed:
    """The place of an observation in a row."""

    after: int  # the number of the row's own tokens that come before it
    observation: EncodedObservation


@dataclass(frozen=True)
class Continuation:
    """The tokens and observations that follow the prompt of one row."""

    tokens: Tensor  # [R] int64; the row's own tokens, of all turns end to end
    observed: tuple[Observed, ...] = ()  # in order

    @cached_property
    def parts(self) -> tuple[Tensor | EncodedObservation, ...]:
        """Own tokens [r] and observations in turn; own tokens may be none at the end."""
        found: list[Tensor | EncodedObservation] = []
        at = 0
        for each in self.observed:
            found += [self.tokens[at : each.after], each.observation]
            at = each.after
        return (*found, self.tokens[at:])

    @property
    def length(self) -> int:
        """The number of all tokens."""
        return len(self.tokens) + sum(each.observation.length for each in self.observed)

    @property
    def media(self) -> list[EncodedPrompt]:
        """The observations, whose media come in this order."""
        return [each.observation.encoded for each in self.observed]

    @property
    def is_own(self) -> Tensor:  # [L] bool
        """True for the row's own tokens."""
        return torch.cat([
            torch.ones(len(part), dtype=torch.bool) if isinstance(part, Tensor)
            else torch.zeros(part.length, dtype=torch.bool)
            for part in self.parts
        ])  # fmt: skip

    def sequence(self, name: str, family: VLMFamily) -> Tensor:
        """Return the values of an input that has one for each token, [L], on the device of the own tokens."""
        return torch.cat(list(self._values(name, family)))

    def positions(self, first: int, family: VLMFamily) -> SequencePositions:
        """Return the positions of all tokens, the first of which is at `first`."""
        found, at = [], first
        for part in self.parts:
            if isinstance(part, Tensor):
                own = torch.arange(at, at + len(part), device=self.tokens.device)
                found.append(own if family.axes == 1 else own.expand(family.axes, -1))
                at += len(part)
            else:
                found.append(part.positions.values.to(self.tokens.device) + at)
                at += part.positions.following
        return SequencePositions(torch.cat(found, dim=-1), at)

    def _values(self, name: str, family: VLMFamily) -> Iterator[Tensor]:
        own_kind = family.answer_kind(name)
        for part in self.parts:
            if not isinstance(part, Tensor):
                inputs = part.encoded.inputs
                known = inputs[name][0] if name in inputs else torch.zeros_like(inputs["input_ids"][0])
                yield known.to(self.tokens.device)
            else:
                yield part if name == "input_ids" else torch.full_like(part, own_kind)


def positions_of(model: Any, family: VLMFamily, prompt: EncodedPrompt) -> SequencePositions:
    """Return the positions of one prompt, those it comes with if it has any."""
    if prompt.positions is not None:
        return prompt.positions
    values, following = prompt_positions(model, family, prompt.inputs)
    return SequencePositions(values[..., 0, :], int(following[0]))


def relative_positions(model: Any, family: VLMFamily, encoded: EncodedPrompt) -> SequencePositions:
    """Return the positions of an observation as if its first token were at 0."""
    own = positions_of(model, family, encoded)
    return SequencePositions(own.values - family.first_position, own.following - family.first_position)


def mixes_media(units: Sequence[EncodedPrompt]) -> bool:
    """Return True if a trajectory of these parts has inputs of images and inputs of videos alone.

    Some models take the frames of a video as images, and so mix nothing.
    """
    videos = any(is_of_videos(name) for unit in units for name in pixel_inputs(unit.inputs))
    return videos and any(unit.images for unit in units)


def with_positions(model: Any, family: VLMFamily, prompt: EncodedPrompt) -> EncodedPrompt:
    """Return the prompt with its positions, where the family has more than one axis."""
    return prompt if family.axes == 1 else replace(prompt, positions=positions_of(model, family, prompt))


def followed(prompt: EncodedPrompt, continuation: Continuation, family: VLMFamily) -> EncodedPrompt:
    """Return a prompt, made by `with_positions`, and what follows it as one sequence, which is read as a prompt.

    Raises:
        DataError: the model cannot take videos of different shapes, and the trajectory holds some; or its tokens attend
            to images by another layer (`CROSS_MASK`).
    """
    units = [prompt, *continuation.media]
    if any(CROSS_MASK in unit.inputs for unit in units):
        raise DataError(
            "this model attends to images by layers of cross-attention, in which later turns have no place: choose "
            "another model, or leave the environment out"
        )
    names = set(chain.from_iterable(sequence_inputs(unit.inputs) for unit in units))
    ids = prompt.inputs["input_ids"]
    inputs = {}
    for name in names:
        begun = prompt.inputs.get(name, torch.zeros_like(ids))
        inputs[name] = torch.cat([begun, continuation.sequence(name, family)[None].to(begun)], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    positions = None
    if prompt.positions is not None:
        after = continuation.positions(prompt.positions.following, family)
        positions = SequencePositions(torch.cat([prompt.positions.values, after.values], dim=-1), after.following)
    return EncodedPrompt(
        inputs | media_inputs(units),
        images=sum(unit.images for unit in units),
        videos=sum(unit.videos for unit in units),
        family=prompt.family,
        wire=_sent(prompt, continuation),
        positions=positions,
    )


def _sent(prompt: EncodedPrompt, continuation: Continuation) -> WirePrompt | None:
    """Return the sequence as it is sent to a server; None if the prompt is not for servers."""
    if prompt.wire is None:
        return None
    ids, images, videos = list(prompt.wire.token_ids), list(prompt.wire.images), list(prompt.wire.videos)
    for part in continuation.parts:
        if isinstance(part, Tensor):
            ids += part.tolist()
        elif part.encoded.wire is not None:
            ids += part.encoded.wire.token_ids
            images += part.encoded.wire.images
            videos += part.encoded.wire.videos
    return WirePrompt(prompt.wire.sample_id, tuple(ids), tuple(images), tuple(videos))
