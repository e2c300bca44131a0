"""Diversity of the images generated for one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.rewards.core.image_input import answer_image, pixels
from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.images.lpips import LPIPSNetwork
from mmrl.rewards.models.clip_encoder import Encoder, load_encoder

Metric = Literal["pixels", "lpips", "clip"]
MIN_SIDE = 32


class Diversity(GroupReward):
    """Mean distance of an image to the others of its group, from 0 (all equal) up.

    The mean over a group is the group's mean pairwise distance. Distances: `pixels`, the mean absolute difference of
    images scaled to `side` x `side` pixels, in [0, 1]; `lpips`, the learned perceptual distance at that size; `clip`,
    1 - the cosine of CLIP's vectors, in [0, 2]. Invalid images do not count for the others; the only image in a group
    cannot be scored ("alone").
    """

    name, needs, range = "diversity", ("image",), (0.0, float("inf"))
    source = "mean pairwise distance; lpips: arXiv:1801.03924, clip: arXiv:2103.00020"
    licence = "Apache-2.0, and that of the named model"

    def __init__(
        self,
        metric: Metric = "pixels",
        model: str | None = None,
        linear: str | None = "torchmetrics",
        side: int = 64,
        device: str = "auto",
    ) -> None:
        """
        Args:
            metric: the distance.
            model: for `clip`, a CLIP of transformers or open_clip by hub id or local path; for `lpips`, the argument
                `network` of the reward lpips (an AlexNet), None means torchvision's.
            linear: for `lpips`, the argument `linear` of that reward.
            side: width and height at which images are compared, at least 32; CLIP has a fixed size.
            device: of the model; "auto" is CUDA if available.
        """
        if metric not in get_args(Metric):
            raise RewardError(f"diversity: metric is {metric!r}; it must be one of {', '.join(get_args(Metric))}")
        if metric == "clip" and model is None:
            raise RewardError("diversity: metric 'clip' needs a model, such as model='openai/clip-vit-base-patch32'")
        if metric == "pixels" and model is not None:
            raise RewardError(f"diversity: metric 'pixels' takes no model, but model is {model!r}")
        if side < MIN_SIDE:
            raise RewardError(f"diversity: side is {side}; it must be at least {MIN_SIDE}")
        self.metric, self.side = metric, side
        self._clip = load_encoder("diversity", model) if metric == "clip" and model else None
        if self._clip is not None:
            self._clip.freeze(device)
        self._lpips = LPIPSNetwork("alex", model or "torchvision", linear, device) if metric == "lpips" else None

    def weight_files(self) -> tuple[WeightFile, ...]:
        if self._clip is not None:
            return tuple(found.weight_file() for found in self._clip.files)
        return self._lpips.weight_files() if self._lpips is not None else ()

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        opened = [attempt(answer_image, item.image, errors=FAULTS) for item in items]
        scored: list[Scored] = [image if isinstance(image, Exception) else float("nan") for image in opened]
        images = {row: image for row, image in enumerate(opened) if not isinstance(image, Exception)}
        if len(images) > 1:
            distances = self.distances(list(images.values()))
            for row, total in zip(images, distances.sum(1), strict=True):
                scored[row] = float(total) / (len(images) - 1)
        else:
            for row in images:
                scored[row] = ScoringFailed("diversity compares images, but this group has only one", "alone")
        return scored

    def distances(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        """Return [N, N] distances of RGB images, symmetric and 0 on the diagonal."""
        if self._clip is not None:
            return self._angular(self._clip, images)
        small = [image.resize((self.side, self.side), Image.Resampling.BOX) for image in images]
        values = np.stack([pixels(image) for image in small])
        if self._lpips is None:
            return np.stack([np.abs(values - one).mean((1, 2, 3)) for one in values])
        return self._perceptual(self._lpips, values)

    def _angular(self, clip: Encoder, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        import torch

        device = next(clip.network.parameters()).device
        with torch.inference_mode():
            vectors = np.asarray(clip.embed_pixels(clip.pixels(images).to(device)).cpu(), np.float64)
        # 1 - the cosine of unit vectors, and exactly 0 for equal ones
        return np.stack([np.square(vectors - one).sum(1) / 2 for one in vectors])

    def _perceptual(self, network: LPIPSNetwork, values: NDArray[np.float64]) -> NDArray[np.float64]:
        import torch

        with torch.inference_mode():
            layers = network.features(torch.from_numpy(values.transpose(0, 3, 1, 2).copy()))
            vectors = torch.cat([layer.flatten(1) for layer in layers], dim=1)
            squares = torch.stack([(vectors - one).square().sum(1) for one in vectors])
        return np.asarray(squares.cpu(), np.float64)
