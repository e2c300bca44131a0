"""The check that every image and video of a trajectory has a gradient: libraries drop media silently."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.errors import DataError
from mmrl.tokens import pad_right, scored_logits, token_log_probs
from mmrl.understanding.continuation import Continuation, followed, with_positions
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, is_of_videos, pixel_inputs, stackable
from mmrl.understanding.shared_prompt import forward_uncached
from mmrl.understanding.vlm import VLM
from mmrl.understanding.vlm_replay import TokenRecording

GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
"""{input of patches: the input with the patch grid of each image or video}."""
Kind = tuple[bool, ...]
"""(has images, has videos) of a prompt, followed by the same of each observation after it."""


def check_recorded_media(vlm: VLM, recording: TokenRecording, names: Sequence[str], checked: set[Kind]) -> set[Kind]:
    """Check the rows whose kind of media is not among those that were `checked`, and return the kinds of these.

    The media of all turns of a row are checked through its last turn, which they all come before. `names` [B] are the
    ids of the samples, for messages.

    Raises:
        DataError: an image or video has no gradient.
    """
    units = [
        [recording.prompts[number], *recording.continuation(row).media]
        for row, number in enumerate(recording.prompt_of)
    ]
    kinds = [tuple(kind for unit in each for kind in (unit.images > 0, unit.videos > 0)) for each in units]
    new = {kind for kind in kinds if any(kind)} - checked
    rows, alone = [], set()  # one row without observations is enough for a prompt
    for row, number in enumerate(recording.prompt_of):
        if kinds[row] in new and (len(units[row]) > 1 or number not in alone):
            rows.append(row)
            if len(units[row]) == 1:
                alone.add(number)
    if not rows:
        return set()
    before, answers = [], []
    for row in rows:
        whole = recording.continuation(row)
        start = whole.observed[-1].after if whole.observed else 0
        prompt = recording.prompts[recording.prompt_of[row]]
        if start:
            until = Continuation(whole.tokens[:start], whole.observed)
            prompt = followed(with_positions(vlm.model, vlm.family, prompt), until, vlm.family)
        before.append(prompt)
        answers.append(whole.tokens[start:].tolist())
    check_media_affects_logits(vlm, before, answers, [names[row] for row in rows], [units[row] for row in rows])
    return new


def check_media_affects_logits(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    answers: Sequence[Sequence[int]],  # token ids, one answer to each prompt
    names: Sequence[str],  # ids of the samples, for messages
    parts: Sequence[Sequence[EncodedPrompt]],  # each prompt, cut into its parts with media
) -> None:
    """Check that every image and video of the prompts reaches the loss: libraries drop media silently.

    Raises:
        DataError: the probability of an answer has no gradient with respect to an image or video of its prompt.
    """
    with torch.enable_grad():
        for numbers in stackable(prompts):
            some = [number for number in numbers if prompts[number].images or prompts[number].videos]
            if some:
                _check(
                    vlm,
                    [prompts[n] for n in some],
                    [answers[n] for n in some],
                    [(names[n], unit) for n in some for unit in parts[n]],
                )


def _check(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    answers: Sequence[Sequence[int]],
    units: Sequence[tuple[str, EncodedPrompt]],  # the parts of all prompts in order, each with the id of its sample
) -> None:
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    pixels = {name: inputs[name].requires_grad_() for name in pixel_inputs(inputs)}
    tokens, mask = (each.to(vlm.device) for each in pad_right(answers, vlm.padding))
    logits = forward_uncached(vlm.model, vlm.family, inputs, tokens, prompts)
    log_probs = token_log_probs(scored_logits(logits, 1.0, vlm.suppressed), tokens).log_probs
    gradients = torch.autograd.grad(log_probs[mask].sum(), list(pixels.values()), allow_unused=True)
    for (name, values), gradient in zip(pixels.items(), gradients, strict=True):
        known = torch.zeros_like(values) if gradient is None else gradient
        owners = [(sample, unit) for sample, unit in units if name in unit.inputs]
        joined = -1 if vlm.family.in_one_row else 0
        shares = known.split([unit.inputs[name].shape[joined] for _, unit in owners], dim=joined)
        for (sample, unit), share in zip(owners, shares, strict=True):
            number = unit.videos if is_of_videos(name) else unit.images
            if not all(bool(item.any()) for item in _items(share, unit.inputs.get(GRIDS.get(name, "")), number)):
                kind = "a video" if is_of_videos(name) or not unit.images else "an image"
                raise DataError(
                    f"sample {sample!r}: {kind} went into {type(vlm.model).__name__} and did not reach the loss: "
                    "the answer has no gradient with respect to its pixels. Nothing was updated"
                )


def _items(share: Tensor, grid: Tensor | None, number: int) -> Sequence[Tensor]:
    """Split pixels into those of each image or video: by a grid of patches, or where a dimension has their number.

    Where tiles or frames of several are in one dimension, they are returned as one.
    """
    if grid is not None:
        return share.split(grid.prod(-1).tolist())
    if len(share) == number:
        return share.split(1)
    return share[0].split(1) if len(share) == 1 and share.ndim > 4 and share.shape[1] == number else [share]
