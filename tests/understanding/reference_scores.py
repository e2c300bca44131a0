"""Answers scored without mmrl: one prompt alone, by its model's own processor and its model's own defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tests.understanding.media import RATE


def encode(
    processor: Any,
    text: str,
    pictures: Sequence[Image.Image] = (),
    videos: Sequence[np.ndarray] = (),  # each [T, H, W, 3] uint8, all of a video at `media.RATE`
    requested: Mapping[str, Any] = MappingProxyType({}),  # further arguments of the processor
) -> dict[str, Any]:
    """Return the inputs of the model for one user turn: images first, then videos, then words."""
    media = [{"type": "image"}] * len(pictures) + [{"type": "video"}] * len(videos)
    if processor.chat_template is None:
        written = processor.image_token * len(pictures) + text
    else:
        turn = [{"role": "user", "content": [*media, {"type": "text", "text": text}]}]
        written = processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    inputs: dict[str, Any] = {}
    if pictures:
        inputs["images"] = [list(pictures)]
    if videos:
        inputs["videos"] = [list(videos)]
        times = [[_times(len(frames)) for frames in videos]]
        inputs["videos_kwargs"] = {"do_sample_frames": False, "return_metadata": True, "video_metadata": times}
    encoded = dict(processor(text=[written], return_tensors="pt", **inputs, **requested))
    encoded.pop("labels", None)  # PaliGemma's: no loss is computed
    encoded.pop("video_metadata", None)
    return encoded


def _times(frames: int) -> dict[str, Any]:
    chosen = {"frames_indices": list(range(frames)), "total_num_frames": frames}
    return chosen | {"fps": RATE, "duration": frames / RATE}


def log_probs(
    model: Any,
    encoded: dict[str, Any],
    answer: Sequence[int],
    temperature: float = 1.0,
    never: Sequence[int] = (),  # tokens that cannot be sampled
) -> Tensor:  # [len(answer)], with a graph if gradients are enabled
    """log p of each token of an answer, in one pass over prompt and answer."""
    scores = outputs(model, encoded, answer) / temperature
    allowed = torch.ones(scores.shape[-1], dtype=torch.bool)
    allowed[list(never)] = False
    return scores.masked_fill(~allowed, -torch.inf).log_softmax(-1)[torch.arange(len(answer)), torch.tensor(answer)]


def outputs(model: Any, encoded: dict[str, Any], answer: Sequence[int]) -> Tensor:  # [len(answer), V], with a graph
    """Return the outputs before each token of an answer, in one pass over prompt and answer."""
    tokens = torch.tensor([list(answer)])
    whole = dict(encoded)
    whole["input_ids"] = torch.cat([encoded["input_ids"], tokens], dim=1)
    whole["attention_mask"] = torch.ones_like(whole["input_ids"])
    for name in [each for each in encoded if each.endswith("token_type_ids")]:
        kind = int(name == "token_type_ids" and model.config.model_type == "paligemma")
        whole[name] = torch.cat([encoded[name], torch.full_like(tokens, kind)], dim=1)
    if "cross_attention_mask" in encoded:
        seen = encoded["cross_attention_mask"]
        whole["cross_attention_mask"] = torch.cat([seen, seen[:, -1:].expand(-1, len(answer), -1, -1)], dim=1)
    return model(**whole).logits[0, -len(answer) - 1 : -1]
