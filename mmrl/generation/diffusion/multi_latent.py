"""Latents that are denoised together, each by a scheduler of its own: LTX-2's picture and sound.

To the policy they are one: laid end to end, [B, N1 + N2]. A single part keeps its shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.transitions import Level


def join(parts: Sequence[Tensor]) -> Tensor:  # [B, ...] each
    """One part as it is; several as [B, N]."""
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)


def split(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts again, in the shapes of `like`."""
    if len(like) == 1:
        return [joined]
    pieces = joined.split([part[0].numel() for part in like], dim=1)
    return [piece.reshape(part.shape) for piece, part in zip(pieces, like, strict=True)]


def join_log_probs(log_probs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:  # [B] each -> [B]
    """The mean over all latent dimensions from the mean over those of each part, and how many they are."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([each * size for each, size in zip(log_probs, sizes, strict=True)]).sum(0) / sum(sizes)


def shared_std(stds: Sequence[Level]) -> Level:
    """The standard deviation of all parts.

    Raises:
        UnsupportedError: they differ.
    """
    if any(std != stds[0] for std in stds):
        raise UnsupportedError(f"latents that are denoised together explore with different noise: {stds}")
    return stds[0]
