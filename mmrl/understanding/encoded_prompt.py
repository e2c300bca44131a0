"""Prompts as inputs of a model's forward pass, and which of them are batched, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from mmrl.errors import DataError
from mmrl.understanding.vlm_family import VLMFamily

_PIXELS = ("pixel", "image_patches")
"""Parts of the names of inputs with pixels; some models have two for an image, in a low and a high resolution."""
CROSS_MASK = "cross_attention_mask"
"""The input [B, L, images, tiles] that says which images each token looks at, where they have no tokens (Mllama)."""
_UNKNOWN = VLMFamily("")
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""Ends of the names of inputs with one value for each token; an input of patches may have the same shape."""


@dataclass(frozen=True)
class SequencePositions:
    """The positions of a sequence of L tokens, where they do not follow from its inputs alone."""

    values: Tensor  # [L] or [axes, L] int64
    following: int  # the position of the next token


@dataclass(frozen=True)
class WirePrompt:
    """A prompt as it is sent to a server, whose processor computes the inputs itself."""

    sample_id: str
    token_ids: tuple[int, ...]  # with the marks of the chat template alone: one placeholder for each image and video
    images: tuple[Image.Image, ...]
    videos: tuple[NDArray[np.uint8], ...] = ()  # the frames of each, [T, H, W, 3]


@dataclass(frozen=True)
class EncodedPrompt:
    """The model inputs of one prompt. Tensors have a batch dimension of 1, or one row for each image or patch."""

    inputs: dict[str, Tensor]
    images: int
    videos: int
    family: VLMFamily = _UNKNOWN
    """The family decides which prompts may be in one batch."""
    positions: SequencePositions | None = None
    """None: as the model counts them from the inputs."""
    wire: WirePrompt | None = None
    """With `PromptEncoder(keep_media=True)`."""

    @property
    def length(self) -> int:
        """The number of tokens, image tokens included."""
        return self.inputs["input_ids"].shape[1]

    @property
    def bytes(self) -> int:
        """The size of all its inputs, and of the images and videos that are kept with them."""
        own = sum(value.nbytes for value in self.inputs.values())
        if self.wire is None:
            return own
        pixels = sum(picture.width * picture.height for picture in self.wire.images)
        return own + 3 * pixels + sum(frames.nbytes for frames in self.wire.videos)

    def followed_by(self, tokens: Sequence[int], family: VLMFamily) -> EncodedPrompt:
        """Return the prompt followed by the first tokens of an answer."""
        if not tokens:
            return self
        ids = self.inputs["input_ids"]
        inputs = dict(self.inputs)
        for name in sequence_inputs(self.inputs):
            added = torch.full((1, len(tokens)), family.answer_kind(name), dtype=self.inputs[name].dtype)
            inputs[name] = torch.cat([self.inputs[name], added], dim=1)
        inputs["input_ids"] = torch.cat([ids, ids.new_tensor([list(tokens)])], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if CROSS_MASK in inputs:
            inputs[CROSS_MASK] = torch.cat([inputs[CROSS_MASK], continued(inputs[CROSS_MASK], len(tokens))], dim=1)
        wire = self.wire and replace(self.wire, token_ids=(*self.wire.token_ids, *tokens))
        return replace(self, inputs=inputs, wire=wire)


def collate(
    prompts: Sequence[EncodedPrompt],
    padding: int,
) -> dict[str, Tensor]:
    """Batch P prompts: inputs with one value for each token are padded on the left to [P, L], others concatenated."""
    longest = max(prompt.length for prompt in prompts)
    joined: dict[str, list[Tensor]] = {}
    for prompt in prompts:
        room = longest - prompt.length
        for name in sequence_inputs(prompt.inputs):
            value = F.pad(prompt.inputs[name], (room, 0), value=padding if name == "input_ids" else 0)
            joined.setdefault(name, []).append(value)
    for name, values in joined.items():  # a prompt without media may lack types of tokens
        if name.endswith("token_type_ids") and len(values) != len(prompts):
            raise DataError(f"some prompts of this batch have {name} and some have none")
    return {name: torch.cat(values) for name, values in joined.items()} | media_inputs(prompts)


def media_inputs(parts: Sequence[EncodedPrompt]) -> dict[str, Tensor]:
    """Return the inputs that have no value for each token (pixels, grids, sizes), concatenated in order.

    Raises:
        DataError: they hold videos of different shapes, which one tensor of frames cannot hold.
    """
    joined: dict[str, list[Tensor]] = {}
    for part in parts:
        for name in part.inputs.keys() - sequence_inputs(part.inputs):
            joined.setdefault(name, []).append(part.inputs[name])
    if len({tuple(video.shape[1:]) for video in joined.get("pixel_values_videos", [])}) > 1:
        raise DataError(
            "the videos of one trajectory differ in their number of frames or their size, and this model takes them "
            "as one tensor: let the environment show videos of equal length and size"
        )
    family = parts[0].family
    in_one_row = set(pixel_inputs({name: values[0] for name, values in joined.items()}) if family.in_one_row else ())
    return {
        name: torch.cat(values, dim=-1) if name in in_one_row else torch.cat(_to_one_shape(values))
        for name, values in joined.items()
    }


def stackable(prompts: Sequence[EncodedPrompt]) -> list[list[int]]:
    """Return the indices of prompts in sets that `collate` may batch: prompts whose videos have the same shape.

    In models that take videos as one tensor of frames (LLaVA-OneVision), padding frames would be attended to. Some
    families cannot tell the tokens of images from those of videos, or count the images of a whole batch.
    """
    if any(not prompt.family.batches for prompt in prompts):
        return [[number] for number in range(len(prompts))]
    sets: dict[tuple[int, ...] | None, list[int]] = {}
    for number, prompt in enumerate(prompts):
        videos = prompt.inputs.get("pixel_values_videos")
        key = (0,) if prompt.images and not prompt.family.mixes_media else None
        sets.setdefault(key if videos is None else tuple(videos.shape[1:]), []).append(number)
    without = sets.pop(None, []) if len(sets) > 1 else []  # prompts without videos fit into any set
    return [sorted(numbers + (without if not place else [])) for place, numbers in enumerate(sets.values())]


def continued(mask: Tensor, width: int) -> Tensor:
    """Return the rows of a cross-attention mask for `width` tokens after its last one."""
    return mask[:, -1:].expand(-1, width, -1, -1)


def pixel_inputs(inputs: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the inputs with the pixels of images and videos."""
    return [name for name, value in inputs.items() if value.is_floating_point() and any(p in name for p in _PIXELS)]


def is_of_videos(name: str) -> bool:
    """Return True if an input has the pixels of videos alone, by its name."""
    return "video" in name


def sequence_inputs(inputs: dict[str, Tensor]) -> set[str]:
    """Return the names of the inputs with one value for each token."""
    shape = inputs["input_ids"].shape
    return {name for name, value in inputs.items() if value.shape == shape and name.endswith(_OF_TOKENS)}


def _to_one_shape(values: list[Tensor]) -> list[Tensor]:
    """Pad every dimension but the first with zeros at the end, to the largest: models skip such tiles."""
    largest = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
    return [
        F.pad(v, [n for size, most in zip(v.shape[:0:-1], largest[::-1], strict=True) for n in (0, most - size)])
        for v in values
    ]
