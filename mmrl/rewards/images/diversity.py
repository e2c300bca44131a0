"""How much the answers to one prompt differ from one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.rewards.core.image_input import answer_image, pixels
from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.spec import WeightFile
from mmrl.rewards.images.lpips import LPIPSNetwork
from mmrl.rewards.models.clip_encoder import Encoder, load_encoder
from mmrl.rewards.models.model_files import torch_device

Metric = Literal["pixels", "lpips", "clip"]
LEAST_SIDE = 32


class Diversity(GroupReward):
    """Mean distance of a picture to the others of its group, from 0 (all the same) up.

    The mean over a group is the group's mean pairwise distance. Distances: `pixels`, the mean absolute difference of
    pictures scaled to `side` x `side` pixels, in [0, 1]; `lpips`, the learned perceptual distance at that size; `clip`,
    1 - the cosine of CLIP's vectors, in [0, 2]. Pictures that cannot be used are invalid and do not count for the
    others; a picture that is alone cannot be scored ("alone").
    """

    name, needs, range = "diversity", ("image",), (0.0, float("inf"))
    source = "mean pairwise distance; lpips: arXiv:1801.03924, clip: arXiv:2103.00020"
    licence = "Apache-2.0, and that of the model that is named"

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
            model: for `clip`, a CLIP of transformers or open_clip by hub id or local path; for `lpips`, what the reward
                lpips calls `network` (an AlexNet), torchvision's own if unset.
            linear: for `lpips`, as there.
            side: pixels a side at which pictures are compared, at least 32; CLIP has its own.
            device: of the model; "auto" is CUDA where there is any.
        """
        if metric not in get_args(Metric):
            raise RewardError(f"diversity: metric is {metric!r}; one of {', '.join(get_args(Metric))} is due")
        if metric == "clip" and model is None:
            raise RewardError("diversity: metric 'clip' needs a model, such as model='openai/clip-vit-base-patch32'")
        if metric == "pixels" and model is not None:
            raise RewardError(f"diversity: metric 'pixels' takes no model, but model is {model!r}")
        if side < LEAST_SIDE:
            raise RewardError(f"diversity: side is {side}; at least {LEAST_SIDE} is due")
        self.metric, self.side = metric, side
        self._clip = load_encoder("diversity", model) if metric == "clip" and model else None
        if self._clip is not None:
            self._clip.network.eval().requires_grad_(False).to(torch_device(device))
        self._lpips = LPIPSNetwork("alex", model or "torchvision", linear, device) if metric == "lpips" else None

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Those of the model."""
        if self._clip is not None:
            return tuple(found.weight_file() for found in self._clip.files)
        return self._lpips.weight_files() if self._lpips is not None else ()

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Each picture's mean distance to the others."""
        seen: dict[int, Image.Image] = {}
        scored: list[Scored] = [float("nan")] * len(items)
        for row, item in enumerate(items):
            try:
                seen[row] = answer_image(item.image)
            except (InvalidAnswer, ScoringFailed) as err:
                scored[row] = err
        if len(seen) > 1:
            distances = self.distances(list(seen.values()))
            for row, total in zip(seen, distances.sum(1), strict=True):
                scored[row] = float(total) / (len(seen) - 1)
        else:
            for row in seen:
                scored[row] = ScoringFailed("diversity compares pictures, and this one is alone in its group", "alone")
        return scored

    def distances(self, pictures: Sequence[Image.Image]) -> NDArray[np.float64]:
        """[N, N]; of RGB pictures, symmetric and 0 on the diagonal."""
        if self._clip is not None:
            return self._angular(self._clip, pictures)
        small = [picture.resize((self.side, self.side), Image.Resampling.BOX) for picture in pictures]
        values = np.stack([pixels(picture) for picture in small])
        if self._lpips is None:
            return np.stack([np.abs(values - one).mean((1, 2, 3)) for one in values])
        return self._perceptual(self._lpips, values)

    def _angular(self, clip: Encoder, pictures: Sequence[Image.Image]) -> NDArray[np.float64]:
        import torch

        device = next(clip.network.parameters()).device
        with torch.inference_mode():
            vectors = np.asarray(clip.embed_pixels(clip.pixels(pictures).to(device)).cpu(), np.float64)
        # 1 - the cosine of unit vectors, and exactly 0 for equal ones
        return np.stack([np.square(vectors - one).sum(1) / 2 for one in vectors])

    def _perceptual(self, network: LPIPSNetwork, values: NDArray[np.float64]) -> NDArray[np.float64]:
        import torch

        with torch.inference_mode():
            layers = network.features(torch.from_numpy(values.transpose(0, 3, 1, 2).copy()))
            vectors = torch.cat([layer.flatten(1) for layer in layers], dim=1)
            squares = torch.stack([(vectors - one).square().sum(1) for one in vectors])
        return np.asarray(squares.cpu(), np.float64)
