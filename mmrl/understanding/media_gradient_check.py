"""Check that images and videos reach the loss: the gradient of an answer with respect to the pixels is not zero.

Libraries drop media silently: a processor ignores videos, a trainer filters arguments. The check runs before the first
update of a run.
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
"""{input of patches: the input with the patch grid of each image or video}."""


def media_kinds(prompts: Sequence[EncodedPrompt]) -> set[tuple[bool, bool]]:
    """Return the (has images, has videos) combinations of prompts with media."""
    return {(p.images > 0, p.videos > 0) for p in prompts if p.images or p.videos}


def check_media_affects_logits(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    answers: Sequence[Sequence[int]],  # token ids, one answer to each prompt
    names: Sequence[str],  # ids of the samples, for messages
) -> None:
    """Check every image and video of the prompts.

    Raises:
        DataError: the probability of an answer has no gradient with respect to an image or video of its prompt.
    """
    with torch.enable_grad():
        for numbers in stackable(prompts):
            some = [number for number in numbers if prompts[number].images or prompts[number].videos]
            if some:
                _check(vlm, [prompts[n] for n in some], [answers[n] for n in some], [names[n] for n in some])


def _check(vlm: VLM, prompts: Sequence[EncodedPrompt], answers: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    pixels = {name: inputs[name].requires_grad_() for name in GRIDS if name in inputs}
    tokens, mask = (each.to(vlm.device) for each in pad_right(answers, vlm.padding))
    logits = prefill(vlm.model, vlm.family, inputs).answer_logits(tokens)
    log_probs, _ = token_log_probs(scored_logits(logits, 1.0, vlm.suppressed), tokens)
    gradients = torch.autograd.grad(log_probs[mask].sum(), list(pixels.values()), allow_unused=True)
    for (name, values), gradient in zip(pixels.items(), gradients, strict=True):
        known = torch.zeros_like(values) if gradient is None else gradient
        owners = [(sample, prompt) for sample, prompt in zip(names, prompts, strict=True) if name in prompt.inputs]
        shares = known.split([prompt.inputs[name].shape[0] for _, prompt in owners])
        for (sample, prompt), share in zip(owners, shares, strict=True):
            if not all(bool(item.any()) for item in _items(share, prompt.inputs.get(GRIDS[name]))):
                kind = "a video" if name == "pixel_values_videos" or not prompt.images else "an image"
                raise DataError(
                    f"sample {sample!r}: {kind} went into {type(vlm.model).__name__} and did not reach the loss: "
                    "the answer has no gradient with respect to its pixels. Nothing was updated"
                )


def _items(share: Tensor, grid: Tensor | None) -> Sequence[Tensor]:
    """Split pixels by image or video, if a grid gives their number of patches; otherwise return all in one."""
    return [share] if grid is None else share.split(grid.prod(-1).tolist())
