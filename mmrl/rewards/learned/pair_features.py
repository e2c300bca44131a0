"""Features of an answer and its prompt, from a frozen encoder: what heads of reward models are trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.rewards.models.text_encoder import TextEncoder


def joint_features(
    images: Tensor,  # [B, D] unit vectors
    texts: Tensor,  # [B, D] unit vectors
) -> Tensor:  # [B, 3 D]
    """Return image, text and their product side by side, each scaled to entries of about one."""
    import torch

    width = images.shape[1]
    return torch.cat([images * math.sqrt(width), texts * math.sqrt(width), images * texts * width], dim=1)


def text_features(
    encoder: TextEncoder, answers: Sequence[str], others: Sequence[str], batch: int = 256
) -> Tensor:  # [N, 3 D] float32
    """Return the features of N answers in text and the texts that they are compared with, `batch` at a time."""
    import torch

    found = []
    for start in range(0, len(answers), batch):
        rows = slice(start, start + batch)
        found.append(joint_features(encoder.embed(answers[rows]), encoder.embed(others[rows])))
    return torch.cat(found)
