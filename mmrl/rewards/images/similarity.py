"""Structural similarity with a reference picture, at one scale and at several."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mmrl.rewards.base import RewardError
from mmrl.rewards.images.against_reference import AgainstReference
from mmrl.rewards.rules.below_one import below_one

if TYPE_CHECKING:
    from torch import Tensor

_taps = [math.exp(-(place**2) / (2 * 1.5**2)) for place in range(-5, 6)]
WINDOW = tuple(tap / sum(_taps) for tap in _taps)
SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""How much each scale counts, the finest first (Wang, Simoncelli and Bovik, 2003)."""


class SSIM(AgainstReference):
    """Structural similarity with `references["image"]`, in [-1, 1]; 1 for the very same picture.

    Wang et al. 2004: a Gaussian window of 11 pixels (sigma 1.5), K1 = 0.01, K2 = 0.03, population covariance, only
    where the window lies inside the picture; each of the channels R, G and B by itself, and their mean, as
    scikit-image has it. Sides below 11 pixels are a failure of the scorer.
    """

    name, range = "ssim", (-1.0, 1.0)
    source = "Wang et al., Image quality assessment: from error visibility to structural similarity, 2004"
    smallest = 11

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        """[B]; of pictures [B, 3, H, W] in [0, 1]."""
        return ssim(images, references)

    def rounded(self, value: float, same: bool) -> float:
        """1 for the same picture alone."""
        return 1.0 if same else below_one(max(-1.0, value))


class MSSSIM(AgainstReference):
    """Structural similarity over several scales with `references["image"]`, in [0, 1]; 1 for the very same picture.

    Contrast and structure at each scale, luminance at the coarsest, each to the power of its weight; a negative one
    counts as 0. Pictures are halved by means of 2 x 2 pixels, an odd last row or column is left out. Five scales need
    sides of 176 pixels; with fewer `scales` the weights of the finest are scaled to a sum of 1.
    """

    name, range = "ms_ssim", (0.0, 1.0)
    source = "Wang et al., Multi-scale structural similarity for image quality assessment, 2003"

    def __init__(self, scales: int = 5, resize: bool = False) -> None:
        """`scales` from 1 to 5; `resize` the answer to the size of its reference."""
        if not 1 <= scales <= len(SCALE_WEIGHTS):
            raise RewardError(f"ms_ssim: scales is {scales}; 1 to {len(SCALE_WEIGHTS)} are due")
        super().__init__(resize)
        self.scales, self.smallest = scales, len(WINDOW) * 2 ** (scales - 1)

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        """[B]; of pictures [B, 3, H, W] in [0, 1]."""
        return ms_ssim(images, references, self.scales)

    def rounded(self, value: float, same: bool) -> float:
        """1 for the same picture alone."""
        return 1.0 if same else below_one(max(0.0, value))


def ssim(
    x: Tensor,  # [B, C, H, W] float in [0, 1], H and W at least 11
    y: Tensor,  # [B, C, H, W]
) -> Tensor:  # [B] in [-1, 1]
    """Mean structural similarity over all channels and all places of the window."""
    luminance, contrast = _parts(x, y)
    return (luminance * contrast).mean((1, 2, 3))


def ms_ssim(
    x: Tensor,  # [B, C, H, W] float in [0, 1], H and W at least 11 * 2 ** (scales - 1)
    y: Tensor,  # [B, C, H, W]
    scales: int = 5,
) -> Tensor:  # [B] in [0, 1]
    """Multi-scale structural similarity. At 0 its gradient is 0, where the power itself would have none."""
    from torch import ones_like, where
    from torch.nn.functional import avg_pool2d

    total = sum(SCALE_WEIGHTS[:scales])
    result = ones_like(x[:, 0, 0, 0])
    for scale, weight in enumerate(SCALE_WEIGHTS[:scales]):
        luminance, contrast = _parts(x, y)
        if scale == scales - 1:
            contrast = luminance * contrast
        mean = contrast.mean((1, 2, 3))
        result = result * where(mean > 0, mean.clamp(min=1e-12) ** (weight / total), 0.0)
        x, y = avg_pool2d(x, 2), avg_pool2d(y, 2)
    return result


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[B, C, H - 10, W - 10]; luminance, and contrast with structure, at each place of the window."""
    c1, c2 = 0.01**2, 0.03**2
    mean_x, mean_y = _windowed(x), _windowed(y)
    spread_x, spread_y = _windowed(x * x) - mean_x * mean_x, _windowed(y * y) - mean_y * mean_y
    shared = _windowed(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1)
    return luminance, (2 * shared + c2) / (spread_x + spread_y + c2)


def _windowed(x: Tensor) -> Tensor:
    """Weighted means over the window: along columns, then along rows."""
    for axis in (-2, -1):
        size = x.shape[axis] - len(WINDOW) + 1
        mean = x.narrow(axis, 0, size) * WINDOW[0]
        for start, weight in enumerate(WINDOW[1:], start=1):
            mean = mean.add(x.narrow(axis, start, size), alpha=weight)  # quicker than a convolution on a CPU
        x = mean
    return x
