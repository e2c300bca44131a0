"""What rewards that run a network in this process share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import BatchReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.spec import WeightFile
from mmrl.rewards.models.model_files import Found, torch_device

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, device, nn


class ModelReward(BatchReward):
    """A reward that runs a network in this process."""

    needs = ("image",)
    network: nn.Module

    def __init__(self, network: nn.Module, files: Sequence[Found], device: str) -> None:
        """`files` are those that the network was read from. It is frozen: a reward is not trained."""
        self.network = network.eval().requires_grad_(False)
        self._files = tuple(files)
        self._using = threading.Lock()  # tokenizers of transformers are not made for two threads
        self.to(device)

    @property
    def device(self) -> device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def to(self, device: str) -> ModelReward:
        """Move the network; "auto" is the GPU if there is one."""
        self.network.to(torch_device(device))
        return self

    def weight_files(self) -> tuple[WeightFile, ...]:
        """What was loaded, with digests. Reads each file once a process."""
        return tuple(found.weight_file() for found in self._files)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """The score of each answer, in one call; why instead, where the picture cannot be used."""
        import torch

        opened = [_picture(item) for item in items]
        usable = [row for row, picture in enumerate(opened) if not isinstance(picture, Exception)]
        if not usable:
            return [picture for picture in opened if isinstance(picture, Exception)]
        with self._using, torch.inference_mode():
            values = self.score_pictures([opened[row] for row in usable], [items[row] for row in usable])
        scores = dict(zip(usable, values.tolist(), strict=True))
        return [scores.get(row, picture) for row, picture in enumerate(opened)]

    @abstractmethod
    def score_pictures(self, pictures: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        """[B] scores of RGB pictures; `items` give prompts and references."""


class PictureReward(ModelReward):
    """A reward whose network takes pixels of one size, and which gradients can be taken of."""

    differentiable = True
    framing: Callable[[Tensor], Tensor]
    """Brings [B, 3, H, W] in [0, 1] to what `rate` takes, as close to `pixels` as tensor operations come."""

    @abstractmethod
    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[B, 3, h, w] float32: the pictures as the network's own preprocessing makes them."""

    @abstractmethod
    def rate(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] float32 scores of preprocessed pictures."""

    def score_pictures(self, pictures: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        """[B] scores of RGB pictures."""
        return self.rate(self.pixels(pictures).to(self.device), items)

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """[B] scores of images [B, 3, H, W] in [0, 1], with gradients.

        Close to what `score` gives for the same picture, not equal: pictures have 256 levels, tensors do not.
        """
        from mmrl.checks import check_dtypes, check_shapes  # loads torch

        check_shapes("B C H W", {"B": len(batch), "C": 3}, images=images)
        check_dtypes("float", images=images)
        framed = self.framing(images.to(self.device).float())
        with self._using:
            return self.rate(framed, batch)


def no_framing(reward: str, why: str) -> Callable[[Tensor], Tensor]:
    """A framing for models whose preprocessing has no form in tensor operations: refuses, and says why."""

    def refuse(images: Tensor) -> Tensor:
        raise RewardError(f"{reward} has no gradient with this model: {why}")

    return refuse


def _picture(item: RewardInput) -> Any:
    """The answer's picture as RGB, or why it cannot be used."""
    try:
        return answer_image(item.image)
    except (InvalidAnswer, ScoringFailed) as err:
        return err
