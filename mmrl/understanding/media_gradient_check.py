"""Proof that pictures and videos reach the loss: what an answer's probability does not depend on was lost on the way.

Libraries lose media without a word: a processor drops videos, a trainer filters arguments. So the first update of a run
asks for the gradient with respect to the pixels themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.errors import DataError
from mmrl.tokens import pad_right, scored_logits, token_log_probs
from mmrl.understanding.prompt_encoder import EncodedPrompt, collate, stackable
from mmrl.understanding.shared_prompt import prefill
from mmrl.understanding.vlm import VLM

GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
"""Where rows of pixels are patches: what tells how many of them each picture or video has."""


def kinds_of_media(prompts: Sequence[EncodedPrompt]) -> set[tuple[bool, bool]]:
    """Whether there are pictures, and videos, among prompts that have either."""
    return {(p.images > 0, p.videos > 0) for p in prompts if p.images or p.videos}


def check_media_affects_logits(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    answers: Sequence[Sequence[int]],  # one to each prompt
    names: Sequence[str],  # of the samples, for messages
) -> None:
    """
    Raises:
        DataError: the probability of a prompt's answer has no gradient with respect to one of its pictures or videos.
    """
    with torch.enable_grad():
        for numbers in stackable(prompts):
            some = [number for number in numbers if prompts[number].images or prompts[number].videos]
            if some:
                _refuse(vlm, [prompts[n] for n in some], [answers[n] for n in some], [names[n] for n in some])


def _refuse(vlm: VLM, prompts: Sequence[EncodedPrompt], answers: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    pixels = {name: inputs[name].requires_grad_() for name in GRIDS if name in inputs}
    tokens, mask = (each.to(vlm.device) for each in pad_right(answers, vlm.padding))
    logits = prefill(vlm.model, vlm.family, inputs).read_answers(tokens)
    log_probs, _ = token_log_probs(scored_logits(logits, 1.0, vlm.suppressed), tokens)
    gradients = torch.autograd.grad(log_probs[mask].sum(), list(pixels.values()), allow_unused=True)
    for (name, values), gradient in zip(pixels.items(), gradients, strict=True):
        felt = torch.zeros_like(values) if gradient is None else gradient
        owners = [(sample, prompt) for sample, prompt in zip(names, prompts, strict=True) if name in prompt.inputs]
        shares = felt.split([prompt.inputs[name].shape[0] for _, prompt in owners])
        for (sample, prompt), share in zip(owners, shares, strict=True):
            if not all(bool(item.any()) for item in _items(share, prompt.inputs.get(GRIDS[name]))):
                kind = "a video" if name == "pixel_values_videos" or not prompt.images else "a picture"
                raise DataError(
                    f"sample {sample!r}: {kind} went into {type(vlm.model).__name__} and did not reach the loss: no "
                    "pixel of it changes what the model says. Nothing was updated"
                )


def _items(share: Tensor, grid: Tensor | None) -> Sequence[Tensor]:
    """The pixels of each picture or video, where a grid tells them apart; else all of them."""
    return [share] if grid is None else share.split(grid.prod(-1).tolist())
