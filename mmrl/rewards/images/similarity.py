"""Rewards that compare an image with a reference image: their base class, SSIM and multi-scale SSIM."""

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


_taps = [math.exp(-(place**2) / (2 * 1.5**2)) for place in range(-5, 6)]
WINDOW = tuple(tap / sum(_taps) for tap in _taps)
SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""The exponent of each scale, the finest first (Wang, Simoncelli and Bovik, 2003)."""


class ReferenceReward(Reward):
    """A reward that compares an image with `references["image"]`, a path or a PIL image.

    Different sizes are a failure of the scorer, since the user sets a generator's size; `resize=True` scales the
    *answer* to the size of its reference (bicubic), never the reverse, which would let a single pixel match a whole
    image.
    """

    needs = ("image", "references.image")
    differentiable = True
    min_side = 1
    """The least width and height, in pixels."""

    def __init__(self, resize: bool = False) -> None:
        self.resize = resize

    @abstractmethod
    def compare(
        self,
        images: Tensor,  # [B, 3, H, W] in [0, 1]
        references: Tensor,  # [B, 3, H, W] in [0, 1]
    ) -> Tensor:  # [B]
        """Return the score of each pair, with gradients."""

    @abstractmethod
    def finalize(self, value: float, same: bool) -> float:
        """Return the score clipped to the reward's range, perfect only if the two images are equal (`same`)."""

    def score_one(self, item: RewardInput) -> float:
        """Return the score, computed in float64."""
        import torch

        reference = self._reference(item)
        image = self._match_size(answer_image(item.image), reference)
        same = image.tobytes() == reference.tobytes()
        with torch.no_grad():
            value = self.compare(_tensor(image), _tensor(reference))
        return self.finalize(value.item(), same)

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores of images [B, 3, H, W]; half precision is computed in float32.

        Raises:
            ScoringFailed: a reference cannot be used.
        """
        from torch import cat, float32, promote_types

        images = images.to(promote_types(images.dtype, float32))
        scores = []
        for image, item in zip(images[:, None], batch, strict=True):  # references may differ in size
            reference = _tensor(self._reference(item)).to(image)
            if self.resize and image.shape != reference.shape:
                image = _resized(image, reference.shape[-2:])
            elif image.shape != reference.shape:
                raise _sizes_differ((image.shape[-1], image.shape[-2]), (reference.shape[-1], reference.shape[-2]))
            scores.append(self.compare(image, reference))
        return cat(scores)

    def _reference(self, item: RewardInput) -> Image.Image:
        reference = reference_image(item.references["image"])
        if min(reference.size) < self.min_side:
            raise ScoringFailed(
                f"{self.name} needs images of at least {self.min_side} pixels a side; the reference has "
                f"{reference.width} x {reference.height}",
                "too_small",
            )
        return reference

    def _match_size(self, image: Image.Image, reference: Image.Image) -> Image.Image:
        if image.size == reference.size:
            return image
        if not self.resize:
            raise _sizes_differ(image.size, reference.size)
        return image.resize(reference.size, Image.Resampling.BICUBIC)


def _tensor(image: Image.Image) -> Tensor:
    """Return [1, 3, H, W] float64 in [0, 1]."""
    from torch import from_numpy

    return from_numpy(np.ascontiguousarray(pixels(image).transpose(2, 0, 1))[None])


def _resized(image: Tensor, size: Sequence[int]) -> Tensor:
    from torch.nn.functional import interpolate

    return interpolate(image, list(size), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)


def _sizes_differ(answer: tuple[int, int], reference: tuple[int, int]) -> ScoringFailed:
    return ScoringFailed(
        f"the image has {answer[0]} x {answer[1]} pixels and its reference {reference[0]} x {reference[1]}: make "
        "them equal, or set resize=True",
        "size",
    )


class SSIM(ReferenceReward):
    """Structural similarity with `references["image"]`, in [-1, 1]; 1 for equal images.

    Wang et al. 2004: a Gaussian window of 11 pixels (sigma 1.5), K1 = 0.01, K2 = 0.03, population covariance, only
    where the window lies inside the image; computed per channel and averaged over R, G and B, as in scikit-image.
    Sides below 11 pixels are a failure of the scorer.
    """

    name, range = "ssim", (-1.0, 1.0)
    source = "Wang et al., Image quality assessment: from error visibility to structural similarity, 2004"
    min_side = 11

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        return ssim(images, references)

    def finalize(self, value: float, same: bool) -> float:
        return 1.0 if same else clamp_below_one(max(-1.0, value))


class MSSSIM(ReferenceReward):
    """Structural similarity over several scales with `references["image"]`, in [0, 1]; 1 for equal images.

    Contrast and structure at each scale, luminance at the coarsest, each to the power of its weight; a negative one
    counts as 0. Images are halved by averaging 2 x 2 pixels; an odd last row or column is dropped. Five scales need
    sides of 176 pixels; with fewer `scales` the weights of the finest are scaled to a sum of 1.
    """

    name, range = "ms_ssim", (0.0, 1.0)
    source = "Wang et al., Multi-scale structural similarity for image quality assessment, 2003"

    def __init__(self, scales: int = 5, resize: bool = False) -> None:
        """`scales` is from 1 to 5; `resize` scales the answer to the size of its reference."""
        if not 1 <= scales <= len(SCALE_WEIGHTS):
            raise RewardError(f"ms_ssim: scales is {scales}; it must be from 1 to {len(SCALE_WEIGHTS)}")
        super().__init__(resize)
        self.scales, self.min_side = scales, len(WINDOW) * 2 ** (scales - 1)

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        return ms_ssim(images, references, self.scales)

    def finalize(self, value: float, same: bool) -> float:
        return 1.0 if same else clamp_below_one(max(0.0, value))


def ssim(
    x: Tensor,  # [B, C, H, W] float in [0, 1], H and W at least 11
    y: Tensor,  # [B, C, H, W]
) -> Tensor:  # [B] in [-1, 1]
    """Return the mean structural similarity over all channels and window positions."""
    luminance, contrast = _ssim_terms(x, y)
    return (luminance * contrast).mean((1, 2, 3))


def ms_ssim(
    x: Tensor,  # [B, C, H, W] float in [0, 1], H and W at least 11 * 2 ** (scales - 1)
    y: Tensor,  # [B, C, H, W]
    scales: int = 5,
) -> Tensor:  # [B] in [0, 1]
    """Return the multi-scale structural similarity. At 0 its gradient is 0, where that of the power is infinite."""
    from torch import ones_like, where
    from torch.nn.functional import avg_pool2d

    total = sum(SCALE_WEIGHTS[:scales])
    result = ones_like(x[:, 0, 0, 0])
    for scale, weight in enumerate(SCALE_WEIGHTS[:scales]):
        luminance, contrast = _ssim_terms(x, y)
        if scale == scales - 1:
            contrast = luminance * contrast
        mean = contrast.mean((1, 2, 3))
        result = result * where(mean > 0, mean.clamp(min=1e-12) ** (weight / total), 0.0)
        x, y = avg_pool2d(x, 2), avg_pool2d(y, 2)
    return result


def _ssim_terms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return luminance, and contrast with structure, at each window position: [B, C, H - 10, W - 10]."""
    c1, c2 = 0.01**2, 0.03**2
    mean_x, mean_y = _window_mean(x), _window_mean(y)
    spread_x, spread_y = _window_mean(x * x) - mean_x * mean_x, _window_mean(y * y) - mean_y * mean_y
    shared = _window_mean(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1)
    return luminance, (2 * shared + c2) / (spread_x + spread_y + c2)


def _window_mean(x: Tensor) -> Tensor:
    """Return Gaussian-weighted means over the window: along columns, then along rows."""
    for axis in (-2, -1):
        size = x.shape[axis] - len(WINDOW) + 1
        mean = x.narrow(axis, 0, size) * WINDOW[0]
        for start, weight in enumerate(WINDOW[1:], start=1):
            mean = mean.add(x.narrow(axis, start, size), alpha=weight)  # faster than a convolution on a CPU
        x = mean
    return x
