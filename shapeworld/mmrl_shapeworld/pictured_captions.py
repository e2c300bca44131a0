"""Captions with a true picture each, and two measures of pictures by networks: one of pairs, one of whole sets.

`shapeworld:pictured-train` is for training, `pictured-development` for settings, `pictured-validation` and
`pictured-later` for results; a sample has a picture of its caption as its `demonstration`. `pictured-imitated` is
`pictured-train` with the pictures in the form that imitation of image tokens reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.images.similarity import ReferenceReward
from mmrl_shapeworld.captions import SEEN_KINDS, sample_caption, sample_scene
from mmrl_shapeworld.scenes import draw, picture_uri

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = {
    "pictured-train": (171, 1024),
    "pictured-imitated": (171, 1024),
    "pictured-development": (172, 256),
    "pictured-validation": (173, 384),
    "pictured-reference": (174, 1024),
    "pictured-later": (175, 384),
}
"""Seed and size of each split; `pictured-reference` is what `KernelDistance` compares with."""
NAMES = tuple(SPLITS)
IMITATED = "pictured-imitated"
PIXELS = 32


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    from mmrl_shapeworld.splits import caption_sample

    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    found = []
    for number in range(size):
        caption = sample_caption(rng, SEEN_KINDS)
        picture = picture_uri(draw(sample_scene(caption, rng), PIXELS))
        sample = caption_sample(caption, f"{split}-{number:04d}")
        found.append(replace(sample, demonstration=picture if split == IMITATED else {"image": picture}))
    return found


class ShapeDistance(ReferenceReward):
    """Perceptual distance of two pictures by the tiny CLIP that ships, from 0 up; lower is better.

    As LPIPS (arXiv:1801.03924): the features of each place are scaled to unit length, and their squared differences are
    averaged over places and summed over the patch embedding and the first two layers. Differs: those of a vision
    transformer in the place of a convolutional network's, without learned weights.
    """

    name, range, direction = "shapeworld_distance", (0.0, float("inf")), "lower"
    source = "docs/shapeworld.md"
    layers = 3
    """The hidden states that are compared, from the first."""

    def __init__(self, device: str = "auto") -> None:
        """`device`: "auto" is the GPU if there is one."""
        from mmrl.rewards.models.model_files import torch_device
        from mmrl_shapeworld import clip_model

        super().__init__()
        self._network = clip_model.load()[0].vision_model.to(torch_device(device))

    def compare(self, images: Tensor, references: Tensor) -> Tensor:
        """Return [B] distances of images [B, 3, 32, 32] in [0, 1]."""
        from torch import cat
        from torch.nn.functional import normalize

        device = next(self._network.parameters()).device
        both = cat([images, references.to(images)]).to(device).float() * 2 - 1
        states = self._network(pixel_values=both, output_hidden_states=True).hidden_states[: self.layers]
        units = [normalize(layer[:, 1:], dim=-1) for layer in states]
        parts = [(layer[: len(images)] - layer[len(images) :]).square().sum(-1).mean(1) for layer in units]
        total: Tensor = sum(parts[1:], parts[0]).to(images)
        return total

    def finalize(self, value: float, same: bool) -> float:
        return 0.0 if same else max(value, 0.0)


class KernelDistance(Reward):
    """A picture's part of the kernel distance between all pictures of a call and true ones; lower is better.

    The mean over a call is the unbiased estimate of the squared maximum mean discrepancy with the kernel
    (x y / d + 1)^3, the Kernel Inception Distance (arXiv:1801.01401), on the d features of the observer, which no
    reward is computed with. Features are standardised by the true pictures'. A call holds all pictures of an
    evaluation (`evaluation.batch`); for watching, not for training.
    """

    name, range, direction = "shapeworld_kid", (-float("inf"), float("inf")), "lower"
    source = "KID, arXiv:1801.01401"
    needs = ("image",)

    def score_one(self, item: RewardInput) -> float:
        """Raise: one picture alone has no kernel distance."""
        raise ScoringFailed("shapeworld_kid compares pictures, and the call has only one", "alone")

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Compare the pictures of a call with one another and with the true ones."""
        if len(items) < 2:
            return super().score_rows(items, context)
        true, centre, spread = _true_features()
        made = (_features([answer_image(item.image) for item in items]) - centre) / spread
        own = _kernel(made, made)
        np.fill_diagonal(own, 0.0)
        among = own.sum(1) / (len(made) - 1)
        parts = among - 2 * _kernel(made, true).mean(1) + _true_kernel()
        return [float(value) for value in parts]


def _kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found: np.ndarray = (x @ y.T / x.shape[1] + 1) ** 3
    return found


@cache
def _true_features() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the standardised features [N, d] of true pictures, with the mean and the deviation that they had."""
    from mmrl.data.media.decode import load_image

    pictures = [load_image(str(each.demonstration["image"]), each.id) for each in samples("pictured-reference")]
    found = _features(pictures)
    centre, spread = found.mean(0), found.std(0) + 1e-6
    return (found - centre) / spread, centre, spread


@cache
def _true_kernel() -> float:
    """Return the mean kernel of two different true pictures."""
    true = _true_features()[0]
    kernel = _kernel(true, true)
    count = len(true)
    return float((kernel.sum() - np.trace(kernel)) / (count * (count - 1)))


def _features(pictures: Sequence[object]) -> np.ndarray:
    """Return [N, d] float64, the observer's features before its last layer."""
    import torch

    from mmrl_shapeworld import observer

    model = observer.load()
    with torch.inference_mode():
        pixels = torch.stack([observer.tensor(picture) for picture in pictures])  # type: ignore[arg-type]
        features = torch.cat([model.layers(part).sum((2, 3)) / 16 for part in pixels.split(128)])
    return np.asarray(features, np.float64)
