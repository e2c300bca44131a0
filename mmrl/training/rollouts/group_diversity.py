"""How different the answers to one prompt are while training: the gauge of a collapse that no reward shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16
"""Pixels a side at which pictures are compared: cheap, and blind to noise."""


def group_diversity(
    media: Sequence[Any],  # R pictures (PIL), videos (lists of PIL) or texts
    groups: Sequence[int],  # R, the prompt that each answers
) -> float | None:
    """The mean over groups of how much their answers differ, in [0, 1]; None where no group has two of one kind.

    Texts: the share of distinct ones. Pictures and the middle frames of videos: the root mean square over pairs of the
    difference of RGB values, at 16 x 16 pixels.
    """
    by_group: dict[int, list[Any]] = {}
    for made, group in zip(media, groups, strict=True):
        by_group.setdefault(group, []).append(made)
    found = [value for held in by_group.values() if (value := _of_group(held)) is not None]
    return float(np.mean(found)) if found else None


def _of_group(held: Sequence[Any]) -> float | None:
    if len(held) < 2:
        return None
    if all(isinstance(made, str) for made in held):
        return len(set(held)) / len(held)
    small = [_small(made) for made in held]
    known = [picture for picture in small if picture is not None]
    if len(known) < len(held):
        return None
    pixels = np.stack(known)
    # The mean over ordered pairs of |a - b|^2 is twice the variance with ddof 1.
    return float(np.sqrt(2 * pixels.var(axis=0, ddof=1, dtype=np.float64).mean()))


def _small(made: Any) -> NDArray[np.float32] | None:
    """[768] in [0, 1]; None for what is no picture."""
    if isinstance(made, Sequence) and made and isinstance(made[0], Image.Image):
        made = made[len(made) // 2]
    if not isinstance(made, Image.Image):
        return None
    small = made.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(small, np.float32).ravel() / np.float32(255)
