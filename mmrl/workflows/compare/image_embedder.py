"""Image embeddings for the diversity and drift columns of `mmrl evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from mmrl.build.schemes import IMAGE_EMBEDDERS, scheme_of
from mmrl.rewards import Reward
from mmrl.rewards.models.clip_encoder import EmbeddingReward, Encoder
from mmrl.statistics.distances import Embedder


@dataclass(frozen=True)
class EncoderEmbedder:
    """An `Embedder` around a CLIP-like network."""

    name: str
    """The network's name in results."""
    encoder: Encoder

    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """Return a unit vector for each picture, [B, D]."""
        device = next(self.encoder.network.parameters()).device
        with torch.no_grad():
            embeddings = self.encoder.embed_pixels(self.encoder.pixels(pictures).to(device))
        return np.asarray(embeddings.float().cpu().numpy(), np.float32)


def find_embedder(rewards: Sequence[Reward], model: str) -> Embedder | None:
    """Return the encoder of the first reward that has one, else that of the package that provides `model`, else None.

    Args:
        rewards: The rewards of the comparison, which are loaded already.
        model: `policy.model` of the first model.
    """
    for reward in rewards:
        if isinstance(reward, EmbeddingReward):
            return EncoderEmbedder(f"the CLIP of {reward.name}", reward.encoder)
    scheme = scheme_of(model, IMAGE_EMBEDDERS)
    return None if scheme is None else IMAGE_EMBEDDERS.load(scheme)()
