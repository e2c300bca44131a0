"""The base classes of rewards that run a network in this process."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import BatchReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, attempt
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.models.model_files import ResolvedFile, torch_device

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, device, nn


class ModelReward(BatchReward):
    """A reward that runs a network in this process."""

    needs: ClassVar[tuple[str, ...]] = ("image",)
    network: nn.Module

    def __init__(self, network: nn.Module, files: Sequence[ResolvedFile], device: str) -> None:
        """`files` are the weight files of `network`, which is frozen."""
        self.network = network.eval().requires_grad_(False)
        self._files = tuple(files)
        self._lock = threading.Lock()  # tokenizers of transformers are not thread-safe
        self.to(device)

    @property
    def device(self) -> device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def to(self, device: str) -> ModelReward:
        """Move the network; "auto" is CUDA if available."""
        self.network.to(torch_device(device))
        return self

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Return the weight files; each is read for its digest once per process."""
        return tuple(found.weight_file() for found in self._files)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return the score of each answer, from one call; an exception in place of each invalid one's."""
        import torch

        opened: list[Any] = [attempt(self.answer_media, item, errors=FAULTS) for item in items]
        usable = [row for row, image in enumerate(opened) if not isinstance(image, Exception)]
        if not usable:
            return [image for image in opened if isinstance(image, Exception)]
        with self._lock, torch.inference_mode():
            values = self.score_images([opened[row] for row in usable], [items[row] for row in usable])
        scores = dict(zip(usable, values.tolist(), strict=True))
        return [scores.get(row, image) for row, image in enumerate(opened)]

    def answer_media(self, item: RewardInput) -> Any:
        """Return what `score_images` is given of an answer: its image, as RGB."""
        return answer_image(item.image)

    @abstractmethod
    def score_images(self, images: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores of RGB images; `items` have prompts and references."""


class PixelReward(ModelReward):
    """A differentiable reward whose network takes pixels of one size."""

    differentiable = True
    tensor_preprocess: Callable[[Tensor], Tensor]
    """Differentiable preprocessing of [B, 3, H, W] in [0, 1] for `score_pixels`; approximates `pixels`."""

    @abstractmethod
    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        """Return the images, preprocessed as published, as [B, 3, h, w] float32."""

    @abstractmethod
    def score_pixels(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """Return [B] float32 scores of preprocessed images."""

    def score_images(self, images: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        return self.score_pixels(self.pixels(images).to(self.device), items)

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores, with gradients, of images [B, 3, H, W] in [0, 1].

        Close to the results of `score`, but not equal: PIL images have 256 levels, tensors do not.
        """
        from mmrl.checks import check_dtypes, check_shapes  # loads torch

        check_shapes("B C H W", {"B": len(batch), "C": 3}, images=images)
        check_dtypes("float", images=images)
        preprocessed = self.tensor_preprocess(images.to(self.device).float())
        with self._lock:
            return self.score_pixels(preprocessed, batch)


def no_tensor_preprocess(reward: str, reason: str) -> Callable[[Tensor], Tensor]:
    """Return a preprocessing that raises, for models whose own cannot be written as tensor operations."""

    def fail(images: Tensor) -> Tensor:
        raise RewardError(f"{reward} has no gradient with this model: {reason}")

    return fail
