"""What rewards share that compare a picture with the one it should be."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from mmrl.rewards.core.image_input import answer_image, pixels, reference_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one

if TYPE_CHECKING:
    from torch import Tensor


class AgainstReference(Reward):
    """Compares a picture with `references["image"]`, a path or a PIL image.

    Sizes that differ are a failure of the scorer, since a generator's size is set by whoever runs it; `resize=True`
    scales the *answer* to the size of its reference (bicubic), never the other way, which would let a single pixel
    stand for a whole picture.
    """

    needs = ("image", "references.image")
    differentiable = True
    smallest = 1
    """Pixels a side that a picture must have."""

    def __init__(self, resize: bool = False) -> None:
        self.resize = resize

    @abstractmethod
    def compare(
        self,
        images: Tensor,  # [B, 3, H, W] in [0, 1]
        references: Tensor,  # [B, 3, H, W] in [0, 1]
    ) -> Tensor:  # [B]
        """The score of each pair, with gradients."""

    @abstractmethod
    def rounded(self, value: float, same: bool) -> float:
        """A score as it leaves, in the reward's range, and perfect only where the two pictures are the same."""

    def score_one(self, item: RewardInput) -> float:
        """Compare in float64."""
        import torch

        reference = self._reference(item)
        picture = self._sized(answer_image(item.image), reference)
        same = picture.tobytes() == reference.tobytes()
        with torch.no_grad():
            value = self.compare(_tensor(picture), _tensor(reference))
        return self.rounded(value.item(), same)

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """[B] of images [B, 3, H, W]; half precision is computed in float32.

        Raises:
            ScoringFailed: a reference cannot be used.
        """
        from torch import cat, float32, promote_types

        images = images.to(promote_types(images.dtype, float32))
        scores = []
        for image, item in zip(images[:, None], batch, strict=True):  # references may have several sizes
            reference = _tensor(self._reference(item)).to(image)
            if self.resize and image.shape != reference.shape:
                image = _resized(image, reference.shape[-2:])
            elif image.shape != reference.shape:
                raise _sizes_differ((image.shape[-1], image.shape[-2]), (reference.shape[-1], reference.shape[-2]))
            scores.append(self.compare(image, reference))
        return cat(scores)

    def _reference(self, item: RewardInput) -> Image.Image:
        reference = reference_image(item.references["image"])
        if min(reference.size) < self.smallest:
            raise ScoringFailed(
                f"{self.name} needs pictures of at least {self.smallest} pixels a side; the reference has "
                f"{reference.width} x {reference.height}",
                "too_small",
            )
        return reference

    def _sized(self, picture: Image.Image, reference: Image.Image) -> Image.Image:
        if picture.size == reference.size:
            return picture
        if not self.resize:
            raise _sizes_differ(picture.size, reference.size)
        return picture.resize(reference.size, Image.Resampling.BICUBIC)


def _tensor(picture: Image.Image) -> Tensor:
    """[1, 3, H, W] float64 in [0, 1]."""
    from torch import from_numpy

    return from_numpy(np.ascontiguousarray(pixels(picture).transpose(2, 0, 1))[None])


def _resized(image: Tensor, size: Sequence[int]) -> Tensor:
    from torch.nn.functional import interpolate

    return interpolate(image, list(size), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)


def _sizes_differ(answer: tuple[int, int], reference: tuple[int, int]) -> ScoringFailed:
    return ScoringFailed(
        f"the picture has {answer[0]} x {answer[1]} pixels and its reference {reference[0]} x {reference[1]}: make "
        "them the same, or say resize=True",
        "size",
    )


# Structural similarity with a reference picture, at one scale and at several.


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
        return 1.0 if same else clamp_below_one(max(-1.0, value))


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
        return 1.0 if same else clamp_below_one(max(0.0, value))


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
