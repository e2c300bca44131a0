"""What sees how alike two pictures are, where a model for it is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from mmrl.config.policy import AnyPolicyConfig
from mmrl.evaluation.comparison.distances import Embedder
from mmrl.rewards import Reward
from mmrl.rewards.models.clip_encoder import EmbeddingReward, Encoder, load_encoder
from mmrl.shapeworld import shipped


@dataclass(frozen=True)
class PictureEmbedder:
    """A CLIP."""

    name: str
    encoder: Encoder

    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """[B, D]: a unit vector of each picture."""
        device = next(self.encoder.network.parameters()).device
        with torch.no_grad():
            points = self.encoder.embed_pixels(self.encoder.pixels(pictures).to(device))
        return np.asarray(points.float().cpu().numpy(), np.float32)


def find_embedder(rewards: Sequence[Reward], policy: AnyPolicyConfig) -> Embedder | None:
    """The encoder of the first reward that has one; else ShapeWorld's CLIP for its own models; else none."""
    for reward in rewards:
        if isinstance(reward, EmbeddingReward):
            return PictureEmbedder(f"the CLIP of {reward.name}", reward.encoder)
    if shipped.is_shipped(policy.model):
        from mmrl.shapeworld.clip import CLIP

        return PictureEmbedder("ShapeWorld's CLIP", load_encoder("evaluate", str(CLIP)))
    return None
