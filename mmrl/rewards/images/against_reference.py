"""What rewards share that compare a picture with the one it should be."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from mmrl.rewards.base import Reward, RewardInput, ScoringFailed
from mmrl.rewards.images.safety import answer_picture, pixels, reference_picture

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
        picture = self._sized(answer_picture(item.image), reference)
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
        reference = reference_picture(item.references["image"])
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
